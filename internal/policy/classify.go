package policy

import (
	"strings"
	"unicode"
)

// Definition is the part of a tool's definition that Classify, RiskOf and
// CategoryOf read. All of it is written by the server, so none of it can make
// a tool look more harmless than its name does.
type Definition struct {
	Name, Title, Description string
	Destructive              bool // annotations.destructiveHint is true
}

// classOrder is which class wins when a name holds several, weakest first.
var classOrder = map[Class]int{Unknown: 0, Read: 1, Write: 2, Send: 3, Execute: 4, Delete: 5}

// verbs tells the class of a word wherever it stands in a name.
var verbs = invert(map[Class]string{
	Read: "read get list search query find fetch show describe stat echo lookup look retrieve browse inspect peek print " +
		"export summarize analyze explain validate verify compare diff preview calculate compute convert parse extract " +
		"scrape resolve watch wait snapshot screenshot help ping whoami discover grep glob ls cat head tail download " +
		"open choose estimate translate measure monitor",
	Write: "create write put update add edit insert save move rename append upload copy patch modify change replace " +
		"assign attach link unlink merge commit store record register enable disable toggle upsert configure " +
		"mkdir touch sync import restore resize generate make mark close reopen fork star pin subscribe duplicate",
	Delete: "delete remove drop purge destroy erase clear forget wipe truncate revoke unregister uninstall kill terminate " +
		"prune discard reset overwrite rm rmdir del",
	Send: "send publish notify reply forward broadcast submit tweet announce dispatch transfer pay charge refund buy purchase",
	Execute: "exec execute run shell eval evaluate invoke deploy trigger navigate click start stop restart launch spawn " +
		"call bash terminal script hover drag press fill interact perform install apply rollback scale handle goto schedule",
})

// weakVerbs are verbs that are as often the thing a verb works on (get_comment,
// list_post, check_crawl_status). They count only where no verb came before them.
var weakVerbs = invert(map[Class]string{
	Read:    "view tree count check info status history test sort filter map watchlist log logs report",
	Write:   "set comment tag label note draft archive lock",
	Send:    "post email mail message invite share ping sms chat alert",
	Execute: "command cmd type crawl select build process task job code workflow",
})

// connectives start a new part of a name: read_and_post does both.
var connectives = map[string]bool{"and": true, "or": true, "then": true}

func invert(in map[Class]string) map[string]Class {
	out := map[string]Class{}
	for class, words := range in {
		for _, w := range strings.Fields(words) {
			out[w] = class
		}
	}
	return out
}

// Classify says what a tool does (PV-10). The words of the name decide; of
// several classes the strictest wins: delete > execute > send > write > read.
// Only a name without a verb is judged by the verbs that the description
// begins with. What neither tells is Unknown, the safe answer: it is held.
//
// Annotations come from the server and are not trusted: readOnlyHint is not
// read at all, destructiveHint only raises (read to unknown, write to delete).
func Classify(d Definition) Class {
	class := classOfName(tokens(d.Name))
	if class == Unknown {
		class = classOfName(tokens(d.Title))
	}
	if class == Unknown {
		class = classOfDescription(d.Description)
	}
	if d.Destructive {
		switch class {
		case Read:
			return Unknown
		case Write:
			return Delete
		}
	}
	return class
}

func classOfName(words []string) Class {
	best, seen := Unknown, false
	browser := len(words) > 0 && (words[0] == "browser" || words[0] == "page" || words[0] == "playwright" || words[0] == "puppeteer")
	for i, w := range words {
		if connectives[w] {
			seen = false
			continue
		}
		class, ok := verbs[w]
		if !ok && !seen {
			class, ok = weakVerbs[w]
			if w == "select" && !browser {
				class = Read // of a database; in a browser it operates the page
			}
			if w == "post" && i > 0 && (words[i-1] == "api" || words[i-1] == "http") {
				class = Write // the HTTP method
			}
		}
		if browser && w == "close" {
			class = Execute
		}
		if ok {
			seen = true
			if classOrder[class] > classOrder[best] {
				best = class
			}
		}
	}
	return best
}

// classOfDescription reads the verbs a description begins with: "Returns …",
// "Create or update …", "List, create, close, or select a tab".
func classOfDescription(text string) Class {
	if len(text) > 400 {
		text = text[:400]
	}
	best := Unknown
	for i, w := range tokens(text) {
		class, ok := verbOfSentence(w)
		if ok {
			if classOrder[class] > classOrder[best] {
				best = class
			}
			continue
		}
		leading := best == Unknown && i < 2 && (w == "this" || w == "tool" || w == "to" || w == "will" || w == "can" || w == "a" || w == "the")
		if !leading && !connectives[w] {
			break
		}
	}
	return best
}

// verbOfSentence knows the verbs also as "returns", "fetches" and "copies".
func verbOfSentence(w string) (Class, bool) {
	if w == "return" || w == "returns" {
		return Read, true
	}
	stems := [...]string{w, strings.TrimSuffix(w, "s"), strings.TrimSuffix(w, "es"), strings.TrimSuffix(w, "ies") + "y"}
	for _, s := range stems {
		if c, ok := verbs[s]; ok {
			return c, true
		}
	}
	for _, s := range stems[:2] {
		if c, ok := weakVerbs[s]; ok {
			return c, true
		}
	}
	return Unknown, false
}

// tokens splits a name at everything that is not a letter or digit, and at
// the humps of camelCase; the words are lower case.
func tokens(s string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
			word = word[:0]
		}
	}
	runes := []rune(s)
	for i, r := range runes {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			flush()
			continue
		}
		if i > 0 && unicode.IsUpper(r) {
			lowerBefore := unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1])
			endOfUpper := unicode.IsUpper(runes[i-1]) && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if lowerBefore || endOfUpper {
				flush()
			}
		}
		word = append(word, r)
	}
	flush()
	return out
}
