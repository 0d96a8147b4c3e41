package catalog

import "doorward.dev/doorward/internal/policy"

// checkCondition refuses a condition that cannot be read or can never be true (case 5). It stands before the
// transaction: reading takes longer than writing.
func (c *Catalog) checkCondition(p Policy) error {
	if p.Condition == "" {
		return nil
	}
	condition, err := policy.Compile(p.Condition)
	if err != nil {
		return err
	}
	server, tool := "", ""
	if t := c.Snapshot().ToolByID(p.ToolID); t != nil {
		server, tool = t.ServerName, t.Name
	}
	return condition.Never(server, tool)
}

// condition compiles what is stored, once per text. One that this version cannot read fails whenever it is
// asked: a broken DENY is never skipped.
func (l *loader) condition(text string) *policy.Condition {
	if text == "" {
		return nil
	}
	if c := l.s.conditions[text]; c != nil {
		return c
	}
	c := l.old.conditions[text]
	if c == nil {
		var err error
		if c, err = policy.Compile(text); err != nil {
			c = policy.Broken(text, err)
		}
	}
	l.s.conditions[text] = c
	return c
}
