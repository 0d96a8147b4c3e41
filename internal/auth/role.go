package auth

// Role of a person; each includes the ones before it.
type Role uint8

// The roles.
const (
	NoRole Role = iota
	Viewer
	Editor
	Admin
	Owner
)

var roleWords = [...]string{NoRole: "none", Viewer: "viewer", Editor: "editor", Admin: "admin", Owner: "owner"}

// ParseRole reads a role's word. An unknown word is NoRole, which may do nothing.
func ParseRole(word string) (Role, bool) {
	for r := Viewer; r <= Owner; r++ {
		if roleWords[r] == word {
			return r, true
		}
	}
	return NoRole, false
}

func (r Role) String() string {
	if int(r) < len(roleWords) {
		return roleWords[r]
	}
	return roleWords[NoRole]
}
