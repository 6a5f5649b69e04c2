package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/windlass-run/windlass/apps/windlass/internal/explain"
)

const troubleshooting = "docs/guides/troubleshooting.md"

var (
	reasonRow = regexp.MustCompile("^\\| `(\\w+)` \\| (.+) \\| (.+) \\|$")
	// gatewayRow has the status of the answer, too.
	gatewayRow   = regexp.MustCompile("^\\| `(\\w+)` \\| (\\d{3}) \\| (.+) \\| (.+) \\|$")
	markdownLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
)

// explainData returns the JSON of the data of `windlass explain`: each row of the page about
// troubleshooting, with the sentence of its section that names the commands that show a reason.
func explainData(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, troubleshooting))
	if err != nil {
		return "", err
	}
	entries, err := explainedIn(string(text))
	if err != nil {
		return "", fmt.Errorf("%s: %w", troubleshooting, err)
	}
	out, err := json.MarshalIndent(entries, "", "  ")
	return string(out) + "\n", err
}

func explainedIn(page string) ([]explain.Entry, error) {
	var out []explain.Entry
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		var seen string
		for line := range strings.SplitSeq(rest, "\n") {
			if where, ok := strings.CutPrefix(line, "Where to see one: "); ok {
				seen = strings.TrimSuffix(plainText(where), ".")
			}
			m := reasonRow.FindStringSubmatch(line)
			if g := gatewayRow.FindStringSubmatch(line); g != nil {
				m = []string{g[0], g[1], "status " + g[2] + ": " + g[3], g[4]}
			}
			if m != nil {
				if seen == "" {
					return nil, fmt.Errorf("the section %q has no line `Where to see one: ...` before its table", title)
				}
				out = append(out, explain.Entry{Reason: m[1], Kind: title, Cause: plainText(m[2]), See: seen, Do: plainText(m[3]), Anchor: headingAnchor(title)})
			}
		}
	}
	return out, nil
}

// plainText returns a text without the syntax of links, as a terminal shows it. A link to
// another page keeps the page's path from the root of the repository.
func plainText(text string) string {
	return markdownLink.ReplaceAllStringFunc(text, func(link string) string {
		m := markdownLink.FindStringSubmatch(link)
		if strings.HasPrefix(m[2], "#") {
			return m[1]
		}
		return m[1] + " (" + filepath.ToSlash(filepath.Join(filepath.Dir(troubleshooting), m[2])) + ")"
	})
}
