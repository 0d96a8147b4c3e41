package policy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/fault"
	"doorward.dev/doorward/internal/policy"
)

func compile(t testing.TB, text string) *policy.Condition {
	t.Helper()
	c, err := policy.Compile(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

// a Monday, 21:30 in Berlin, 15:30 in New York
var evening = time.Date(2026, 11, 30, 20, 30, 0, 0, time.UTC)

func situation() *policy.Situation {
	return &policy.Situation{
		Role: "editor", Kind: "person", AgentID: "a1", AgentName: "claude", Task: "t1", Project: "p1", Server: "fs", Tool: "write_file", Class: policy.Write,
		Definition: json.RawMessage(`{"name":"write_file","annotations":{"destructiveHint":true,"title":"Write"}}`),
		Args:       json.RawMessage(`{"path":"/etc/passwd","n":10,"f":1.5,"big":18446744073709551615,"list":[0,1,2,3,4,5,6,7,8,9],"nested":{"deep":null}}`),
		Now:        evening,
	}
}

// says is what a DENY rule with the condition does to a call that is else allowed.
func says(c *policy.Condition, s *policy.Situation) policy.Verdict {
	f := open("ALLOW")
	f.ServerRules = append(f.ServerRules, policy.Rule{ID: "d", Word: "DENY", If: c})
	f.Situation = s
	return policy.Decide(&f)
}

func TestConditionsHold(t *testing.T) {
	for text, holds := range map[string]bool{
		`args.path.startsWith("/etc/")`:                                true,
		`args.path.matches("^/(etc|usr)/")`:                            true,
		`args.path == "/tmp"`:                                          false,
		`has(args.missing) && args.missing`:                            false,
		`!has(args.missing)`:                                           true,
		`args.n > 9 && args.n == 10.0 && args.f < 2`:                   true,
		`args.big == 18446744073709551615u`:                            true,
		`args.nested.deep == null`:                                     true,
		`args.list.exists(x, x == 9)`:                                  true,
		`size(args.list) > 10`:                                         false,
		`caller.role in ["admin", "owner"]`:                            false,
		`caller.kind == "person" && caller.role == "editor"`:           true,
		`agent.id == "a1" && agent.name == "claude"`:                   true,
		`task == "t1" && project == "p1"`:                              true,
		`tool.server == "fs" && tool.name == "write_file"`:             true,
		`tool.class in ["write", "delete"]`:                            true,
		`tool.annotations.destructiveHint == true`:                     true,
		`"readOnlyHint" in tool.annotations`:                           false,
		`hour("Europe/Berlin") == 21 && hour("America/New_York") < 16`: true,
		`minute("UTC") == 30`:                                          true,
		`weekday("Europe/Berlin") == "monday"`:                         true,
		`weekday("Asia/Tokyo") == "tuesday"`:                           true,
		`date("Asia/Tokyo") == "2026-12-01"`:                           true,
		`date("UTC") >= "2027-01-01"`:                                  false,
		`hour("UTC") < 8 || hour("UTC") >= 18`:                         true,
		"// a comment\nargs.n == 10":                                   true,
	} {
		v := says(compile(t, text), situation())
		if (v.Action == policy.Deny) != holds || strings.Contains(v.Message, "could not be answered") {
			t.Errorf("%s: got %v (%s), want it to hold: %v", text, v.Action, v.Message, holds)
		}
	}
}

// TestConditionFails: a condition that fails counts as matched for DENY and REQUIRE_APPROVAL and as not matched for ALLOW and LOG_ONLY.
func TestConditionFails(t *testing.T) {
	bomb := `args.list.all(a, args.list.all(b, args.list.all(c, args.list.all(d, args.list.all(e, a+b+c+d+e >= 0)))))`
	for _, text := range []string{`args.missing == 1`, `args.path > 5`, `1 / (args.n - 10) > 0`, `args.list[99] == 1`, `args.n` + ` == 10 && args.nope`, bomb} {
		c := compile(t, text)
		for word, want := range map[string]policy.Action{
			"DENY": policy.Deny, "REQUIRE_APPROVAL": policy.RequireApproval, "ALLOW": policy.RequireApproval, "LOG_ONLY": policy.RequireApproval,
		} {
			f := open()
			f.Situation = situation()
			f.ServerRules = []policy.Rule{{ID: "r", Word: word, If: c}}
			v := policy.Decide(&f)
			matched := v.Reason != policy.ReasonNoRule
			if v.Action != want || matched != (word == "DENY" || word == "REQUIRE_APPROVAL") {
				t.Errorf("%s %s: got %v %s", word, text, v.Action, v.Reason)
			}
			if matched && !strings.Contains(v.Message, "could not be answered") {
				t.Errorf("%s %s: the message does not say that the condition failed: %s", word, text, v.Message)
			}
		}
	}
}

// TestConditionBomb stops what a caller makes expensive, soon and together.
func TestConditionBomb(t *testing.T) {
	c := compile(t, `args.list.all(a, args.list.all(b, args.list.all(c, args.list.all(d, args.list.all(e, a+b+c+d+e >= 0)))))`)
	f := open("ALLOW")
	f.Situation = situation()
	for i := range 1000 {
		f.ServerRules = append(f.ServerRules, policy.Rule{ID: fmt.Sprint(i), Word: "ALLOW", If: c})
	}
	start := time.Now()
	if v := policy.Decide(&f); v.Action != policy.Allow || v.RuleID != "s0" {
		t.Errorf("got %+v", v)
	}
	t.Logf("1000 bombs took %v", time.Since(start))
	// The steps are bounded, so the time is: without the bound this would be minutes.
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("1000 bombs took %v", d)
	}
	// What comes after the budget is spent fails closed.
	f.ServerRules = append(f.ServerRules, policy.Rule{ID: "last", Word: "DENY", If: compile(t, `false && args.n == 1 || args.n == 2`)})
	f.Situation = situation()
	if v := policy.Decide(&f); v.Action != policy.Deny || v.RuleID != "last" {
		t.Errorf("after the budget: got %+v", v)
	}
}

func TestConditionRefused(t *testing.T) {
	for _, c := range []struct {
		text         string
		line, column int
		says         string
	}{
		{`caller.rol == "admin"`, 1, 7, "undeclared reference"},
		{"args.n == 1 &&\n  tool.class == 5", 2, 14, "no matching overload"},
		{`args.n ==`, 1, 10, "Syntax error"},
		{`args.n`, 1, 1, "compare it"},
		{`"yes"`, 1, 1, "must be true or false"},
		{`hour("Mars/Base") == 1`, 1, 6, "no time zone"},
		{`hour(args.zone) == 1`, 1, 10, "must be written out"},
		{`hour("Local") == 1`, 1, 6, "must have a name"},
		{`args.path.matches("(")`, 1, 19, "invalid matches argument"},
		{`timestamp(args.t).getHours(args.zone) == 1`, 1, 27, "undeclared reference"},
		{` `, 1, 1, "empty"},
		{strings.Repeat("(", 60) + "true" + strings.Repeat(")", 60), 0, 0, "recursion"},
		{`"` + strings.Repeat("x", 5000) + `" == args.n`, 1, 1, "longer than"},
	} {
		_, err := policy.Compile(c.text)
		var f *fault.Error
		if !errors.As(err, &f) || f.Reason != "mcp_condition_invalid" || f.Codes().HTTP != 400 {
			t.Errorf("%.40q: got %v", c.text, err)
			continue
		}
		if c.line != 0 && (f.Data["line"] != c.line || f.Data["column"] != c.column) {
			t.Errorf("%.40q: at %v:%v, want %d:%d (%s)", c.text, f.Data["line"], f.Data["column"], c.line, c.column, f.Message)
		}
		if !strings.Contains(f.Message, c.says) {
			t.Errorf("%.40q: %q does not say %q", c.text, f.Message, c.says)
		}
	}
}

// TestConditionNever is case 5: a rule that can never match is refused when saved; one that may match never is.
func TestConditionNever(t *testing.T) {
	for text, never := range map[string]bool{
		`false`:                 true,
		`1 == 2`:                true,
		`args.x == 1 && false`:  true,
		`false && args.x == 1`:  true,
		`caller.role == "boss"`: true,
		`caller.role == "Admin" || tool.class == "reads"`: true,
		`tool.class == "write" && tool.class == "read"`:   true,
		`hour("UTC") > 23`:                                true,
		`hour("UTC") < 8 && hour("UTC") > 18`:             true,
		`weekday("UTC") == "Sunday"`:                      true,
		`weekday("UTC") in ["sat", "sun"] && args.x == 1`: true,
		`tool.server == "github" && args.x == 1`:          true, // the rule is for fs/write_file
		`1 / 0 == 1`:                                      true,
		`agent.name == "x" && 1 > 2`:                      true,

		`true`:                             false,
		`args.x == 1`:                      false,
		`caller.role == "owner" && args.x`: false,
		`tool.class == "unknown"`:          false,
		`hour("Asia/Kolkata") == 5`:        false,
		`hour("UTC") == 0 && hour("Asia/Kolkata") == 5 && minute("UTC") < 30`: false,
		`hour("Europe/Berlin") - hour("UTC") == 2`:                            false,
		`weekday("UTC") == "sunday" && hour("UTC") == 23`:                     false,
		`tool.server == "fs" && tool.name == "write_file"`:                    false,
		`minute("UTC") == 59`:                                                 false,
		`date("UTC") == "2031-01-01"`:                                         false,
		`agent.name == "nobody"`:                                              false,
		`tool.annotations.readOnlyHint == false`:                              false,
		`size(args.list) < 0 || caller.kind == "task"`:                        false,
	} {
		err := compile(t, text).Never("fs", "write_file")
		if (err != nil) != never {
			t.Errorf("%s: got %v, want refused: %v", text, err, never)
		}
		if err != nil && fault.From(err).Reason != "mcp_condition_invalid" {
			t.Errorf("%s: reason %q", text, fault.From(err).Reason)
		}
	}
	// A literal bomb does not stop the one who saves it.
	start := time.Now()
	list := "[0,1,2,3,4,5,6,7,8,9]"
	if c, err := policy.Compile(fmt.Sprintf("%[1]s.all(a, %[1]s.all(b, %[1]s.all(c, %[1]s.all(d, %[1]s.all(e, a+b+c+d+e >= 0)))))", list)); err == nil {
		err = c.Never("", "")
		if err == nil {
			t.Error("a condition that always costs too much was accepted")
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("saving a bomb took %v", d)
	}
}

// TestUnknown: lists and excerpts do not know everything about a call.
func TestUnknown(t *testing.T) {
	deny := func(text string, s *policy.Situation) policy.Action { return says(compile(t, text), s).Action }
	list := func() *policy.Situation {
		return &policy.Situation{AgentName: "claude", Kind: "agent", Server: "fs", Tool: "write_file", Class: policy.Write, Unknown: policy.OfNoCall, Lenient: true}
	}
	for text, want := range map[string]policy.Action{
		`args.path == "/"`:                     policy.Allow, // only some calls
		`hour("UTC") < 25 && args.x`:           policy.Allow,
		`task == ""`:                           policy.Allow,
		`agent.name == "claude"`:               policy.Deny, // every call
		`agent.name == "claude" || args.force`: policy.Deny,
		`agent.name == "other"`:                policy.Allow,
		`tool.annotations.nope == 1`:           policy.Deny, // fails for every call
	} {
		if got := deny(text, list()); got != want {
			t.Errorf("list: %s: got %v, want %v", text, got, want)
		}
	}
	s := situation()
	s.Unknown = policy.Args
	if got := deny(`args.path == "/"`, s); got != policy.Deny || !s.Missed {
		t.Errorf("strict: got %v, missed %v", got, s.Missed)
	}
	s = situation()
	s.Unknown = policy.Args
	if got := deny(`agent.name == "other" && args.path == "/"`, s); got != policy.Allow || s.Missed {
		t.Errorf("not asked: got %v, missed %v", got, s.Missed)
	}
	// Without any situation, a condition fails.
	if v := says(compile(t, `agent.name == "other"`), nil); v.Action != policy.Deny {
		t.Errorf("no situation: got %+v", v)
	}
	// What a newer version stored and this one cannot read stays in force where it refuses.
	if v := says(policy.Broken("new()", errors.New("no such function")), situation()); v.Action != policy.Deny {
		t.Errorf("broken: got %+v", v)
	}
	// An unknown word blocks, whatever its condition says.
	f := open("ALLOW")
	f.Situation = situation()
	f.ServerRules = append(f.ServerRules, policy.Rule{ID: "u", Word: "MAYBE", If: compile(t, `false`)})
	if v := policy.Decide(&f); v.Reason != policy.ReasonRuleUnknown {
		t.Errorf("unknown word: got %+v", v)
	}
}

func TestHostileArguments(t *testing.T) {
	c := compile(t, `args.a == 1`)
	for _, args := range []string{``, `[`, `{"a":1}{}`, `{"a":1e999}`, `[1]`, `"a"`, `null`} {
		s := situation()
		s.Args = json.RawMessage(args)
		if v := says(c, s); v.Action != policy.Deny {
			t.Errorf("%s: got %v, want a failed condition to deny", args, v.Action)
		}
	}
}
