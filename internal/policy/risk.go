package policy

import "strings"

// Risk is how bad a misuse of a tool may be, for people to see. It decides
// nothing, no call and no suggestion (PV-12).
type Risk string

// The risks.
const (
	Low      Risk = "LOW"
	Medium   Risk = "MEDIUM"
	High     Risk = "HIGH"
	Critical Risk = "CRITICAL"
)

// The word lists of spec/palveron 4.2.1. The first two are beginnings of
// words, so that "executes" and "removing" count; the last holds whole words
// with their endings, so that "target" is no "get".
var (
	criticalWords = []string{"exec", "shell", "command", "eval"}
	highWords     = []string{"writ", "delet", "remov", "drop", "modif", "updat", "insert"}
	lowWords      = []string{"read", "get", "list", "search", "query"}
)

// RiskOf judges by the words of name and description.
func RiskOf(d Definition) Risk {
	words := append(tokens(d.Name), tokens(d.Description)...)
	switch {
	case anyWord(words, criticalWords, strings.HasPrefix):
		return Critical
	case anyWord(words, highWords, strings.HasPrefix):
		return High
	case anyWord(words, lowWords, inflected):
		return Low
	}
	return Medium
}

func anyWord(words, list []string, match func(word, of string) bool) bool {
	for _, w := range words {
		for _, l := range list {
			if match(w, l) {
				return true
			}
		}
	}
	return false
}

func inflected(word, stem string) bool {
	rest, ok := strings.CutPrefix(word, stem)
	if !ok {
		return word == "queries" && stem == "query"
	}
	switch rest {
	case "", "s", "es", "ed", "ing", "ting", "er":
		return true
	}
	return false
}

// categoryWords are the four categories of the capability model
// (spec/palveron 4.2.4), the more telling first.
var categoryWords = []struct {
	name  string
	words []string
}{
	{"Finance", []string{"payment", "pay", "invoice", "invoices", "refund", "charge", "bank", "price", "billing", "transaction", "transactions", "stock", "order", "orders", "purchase", "payout"}},
	{"Communication", []string{"email", "emails", "mail", "message", "messages", "chat", "slack", "sms", "notify", "notification", "reply", "comment", "comments", "invite", "meeting", "calendar", "post", "tweet"}},
	{"System", []string{"exec", "execute", "shell", "command", "process", "processes", "deploy", "container", "pod", "host", "env", "environment", "server", "service", "browser", "terminal", "run", "script", "bash", "restart"}},
}

// CategoryOf sorts a tool into Communication, Data, Finance or System by its
// name, else by the beginning of its description. Data is the default.
func CategoryOf(d Definition) string {
	description := tokens(d.Description)
	if len(description) > 12 {
		description = description[:12]
	}
	for _, words := range [][]string{tokens(d.Name), description} {
		for _, c := range categoryWords {
			if anyWord(words, c.words, func(w, l string) bool { return w == l }) {
				return c.name
			}
		}
	}
	return "Data"
}
