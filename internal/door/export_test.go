package door

// Route is an operation of the REST interface as tests see it.
type Route struct {
	Method, Path, Name string
	Open, Agents       bool
	In                 any
	Query              []string
	Needs              string
	Known              bool // it has a contract
}

// Routes gives the whole table.
func Routes() []Route {
	var out []Route
	for _, rt := range routes() {
		c, known := contracts[rt.name]
		out = append(out, Route{Method: rt.method, Path: rt.path, Name: rt.name, Open: rt.open, Agents: rt.agents, In: c.in, Query: c.query, Needs: c.needs, Known: known})
	}
	return out
}

// OpenAPIDocument is the document; strict for comparing answers with it.
func OpenAPIDocument(strict bool) map[string]any { return openAPIDocument(strict) }

// QueryWords has the parameters of queries that the document describes.
func QueryWords() map[string]bool {
	out := map[string]bool{}
	for name := range queryWords {
		out[name] = true
	}
	return out
}
