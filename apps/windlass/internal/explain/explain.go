// Package explain returns the cause and the remedy of every reason that Windlass reports. Its data is
// generated from docs/guides/troubleshooting.md.
package explain

import (
	_ "embed"
	"encoding/json"
	"strings"
	"sync"
)

// page is the address of the page from which the entries are generated.
const page = "https://github.com/windlass-run/windlass/blob/main/docs/guides/troubleshooting.md"

//go:embed gen/reasons.json
var data []byte

// Entry is the explanation of a reason.
type Entry struct {
	Reason string `json:"reason"`
	// Kind is the title of the page's section, such as "Instance reasons".
	Kind  string `json:"kind"`
	Cause string `json:"cause"`
	// See names the commands that show the reason.
	See string `json:"see"`
	// Do is the remedy.
	Do string `json:"do"`
	// Anchor is the fragment of the section in the page.
	Anchor string `json:"anchor"`
}

// URL returns the address of the entry's section.
func (e Entry) URL() string { return page + "#" + e.Anchor }

// All returns the entries in the page's order.
var All = sync.OnceValue(func() []Entry {
	var out []Entry
	if err := json.Unmarshal(data, &out); err != nil {
		panic("explain: gen/reasons.json: " + err.Error())
	}
	return out
})

// Find returns the entries of a reason. Upper and lower case, "-" and "_", and the prefix of
// error reasons do not matter. A reason of more than one kind has more than one entry.
func Find(reason string) []Entry {
	var out []Entry
	wanted := key(reason)
	for _, e := range All() {
		if key(e.Reason) == wanted {
			out = append(out, e)
		}
	}
	return out
}

// Name returns the name of an error's reason for people: without its prefix.
func Name(reason string) string { return strings.TrimPrefix(reason, "ERROR_REASON_") }

// Hint returns the line that leads from an error to its reason's explanation. It is empty if no entry
// explains the reason.
func Hint(reason string) string {
	if len(Find(reason)) == 0 {
		return ""
	}
	return "See `windlass explain " + Name(reason) + "`."
}

var wordSeparators = strings.NewReplacer("-", "", "_", "")

func key(reason string) string {
	return strings.TrimPrefix(wordSeparators.Replace(strings.ToLower(reason)), "errorreason")
}
