package door

// Route is an operation of the REST interface as tests see it.
type Route struct {
	Method, Path, Name string
	Open, Agents       bool
	In                 any
	Query              []string
	Known              bool // it has a contract
}

// Routes gives the whole table.
func Routes() []Route {
	var out []Route
	for _, rt := range routes() {
		c, known := contracts[rt.name]
		out = append(out, Route{Method: rt.method, Path: rt.path, Name: rt.name, Open: rt.open, Agents: rt.agents, In: c.in, Query: c.query, Known: known})
	}
	return out
}
