package auth_test

import (
	"strings"
	"sync"
	"testing"

	"doorward.dev/doorward/internal/auth"
	"doorward.dev/doorward/internal/fault"
)

// Names that cannot be told apart by eye are one name.
func TestNamesThatLookAlike(t *testing.T) {
	w := newWorld(t)
	create := func(name string) error {
		_, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: name})
		_, perr := w.CreatePerson(t.Context(), w.ws, name, auth.Viewer)
		if fault.From(err).Error() != strings.ReplaceAll(fault.From(perr).Error(), "person", "agent") {
			t.Errorf("%q: an agent %v, a person %v", name, err, perr)
		}
		return err
	}
	for _, name := range []string{"scope", "paypal", "Jörg", "東京タワー", "Анна", "build 7", "x-y"} {
		if _, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: name}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := w.CreatePerson(t.Context(), w.ws, name, auth.Viewer); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		name  string
		class fault.Class
	}{
		{"Scope", fault.Conflict}, {"SCOPE", fault.Conflict}, {"ｓｃｏｐｅ", fault.Conflict}, {"ѕсоре", fault.Conflict}, // the last all Cyrillic
		{"Jo\u0308rg", fault.Conflict}, {"JÖRG", fault.Conflict}, {"build  7", fault.Conflict}, {"АННА", fault.Conflict},
		{"pаypal", fault.InvalidParams},                                            // one Cyrillic letter
		{"scοpe", fault.InvalidParams},                                             // one Greek letter
		{"sco\u200bpe", fault.InvalidParams}, {"sco\u00adpe", fault.InvalidParams}, // zero width space, soft hyphen
		{"scope\ufe0f", fault.InvalidParams}, {"\u202escope", fault.InvalidParams}, // variation selector, right to left
		{"build\u00a07", fault.InvalidParams}, {"scope\u3164", fault.InvalidParams}, // no-break space, Hangul filler
		{"sco\u034fpe", fault.InvalidParams}, {"scope\U000e0041", fault.InvalidParams}, // grapheme joiner, tag
	} {
		err := create(c.name)
		if !fault.Is(err, c.class) {
			t.Errorf("%q: %v, want %s", c.name, err, c.class)
		}
		if c.class == fault.Conflict && fault.From(err).Reason != "NAME_LOOKS_ALIKE" {
			t.Errorf("%q: %+v", c.name, fault.From(err))
		}
	}
	for _, name := range []string{"scopes", "Anna", "東京", "x_y", "Σίσυφος"} {
		if _, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: "scope"}); !fault.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("the same name: %v", err)
	}
}

// A new name of an agent is looked at, its own name in another case is free, and of names that come at once one is taken.
func TestRenamedLikeAnother(t *testing.T) {
	w := newWorld(t)
	g, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: "alpha"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.CreateAgent(t.Context(), w.ws, auth.Agent{Name: "beta"}); err != nil {
		t.Fatal(err)
	}
	rename := func(name string) error {
		in := *g
		in.Name = name
		_, err := w.UpdateAgent(t.Context(), w.ws, in)
		return err
	}
	if err := rename("Beta"); !fault.Is(err, fault.Conflict) {
		t.Errorf("like another: %v", err)
	}
	if err := rename("Alpha"); err != nil {
		t.Errorf("its own in another case: %v", err)
	}
	var wg sync.WaitGroup
	results := make(chan error, 6)
	for _, name := range []string{"gamma", "Gamma", "GAMMA", "ｇamma", "gAmma", "gaMMa"} {
		wg.Go(func() {
			_, err := w.CreatePerson(t.Context(), w.ws, name, auth.Viewer)
			results <- err
		})
	}
	wg.Wait()
	close(results)
	made := 0
	for err := range results {
		if err == nil {
			made++
		}
	}
	if made != 1 {
		t.Errorf("%d of six names that look alike were taken", made)
	}
}
