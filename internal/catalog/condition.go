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
	c := l.old.conditionOf(text)
	l.s.conditions[text] = c
	return c
}

// conditionOf is the condition of a text as the snapshot has it, else compiled now.
func (s *Snapshot) conditionOf(text string) *policy.Condition {
	if c := s.conditions[text]; c != nil {
		return c
	}
	c, err := policy.Compile(text)
	if err != nil {
		return policy.Broken(text, err)
	}
	return c
}
