//go:build !linux

package filesystem

import "os"

// virtual is only known on Linux; elsewhere there is no /proc to keep out.
func virtual(*os.File) bool { return false }
