package proxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokens_AreWhatTheAnswerSays(t *testing.T) {
	t.Parallel()
	const said = `"usage": {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46, "details": {"cached": [1, {}]}}`
	long := strings.Repeat("x", 3*usageWithin)
	for name, c := range map[string]struct {
		kind, coding, answer string
		want                 usage
	}{
		"an answer":                   {"application/json", "", `{"choices": [], ` + said + `}`, usage{12, 34}},
		"a long one":                  {"application/json; charset=utf-8", "", `{"choices": ["` + long + `"], ` + said + `}`, usage{12, 34}},
		"a stream":                    {"text/event-stream", "", "data: {\"usage\": null}\n\ndata: {" + said + "}\n\ndata: [DONE]\n\n", usage{12, 34}},
		"a stream that updates usage": {"text/event-stream", "", "data: {\"usage\": {\"prompt_tokens\": 12, \"completion_tokens\": 1}}\n\ndata: {" + said + "}\n\n", usage{12, 34}},
		"none":                        {"application/json", "", `{"choices": []}`, usage{}},
		"a usage in the text":         {"application/json", "", `{"content": "{\"usage\": {\"prompt_tokens\": 9}}"}`, usage{}},
		"garbage":                     {"application/json", "", `"usage": {"prompt_tokens": "many`, usage{}},
		"negative":                    {"application/json", "", `"usage": {"prompt_tokens": -1}`, usage{}},
		"a usage that is cut off":     {"application/json", "", `"usage": {"prompt_tokens": 12`, usage{}},
		"a compressed answer":         {"application/json", "gzip", said, usage{}},
		"neither JSON nor a stream":   {"text/html", "", said, usage{}},
	} {
		for _, size := range []int{1, 7, 1000, 1 << 20} {
			var end tail
			end.beginContent(c.kind, c.coding)
			for rest := []byte(c.answer); len(rest) > 0; {
				n := min(size, len(rest))
				end.write(rest[:n])
				rest = rest[n:]
			}
			got, ok := end.lastUsage()
			require.Equal(t, c.want != usage{}, ok, name)
			require.Equal(t, c.want, got, "%s in pieces of %d", name, size)
			require.LessOrEqual(t, len(end.kept), usageWithin)
		}
	}
}
