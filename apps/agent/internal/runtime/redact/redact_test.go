package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const secret = "sk-VICTIM-A/0123+789 \"abc\"<def>"

func TestBlank(t *testing.T) {
	pem := "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n"
	v := New(secret, "hunter2", "abc", pem)
	quoted, err := json.Marshal(secret)
	require.NoError(t, err)
	for name, c := range map[string]struct{ text, want string }{
		"nothing":              {"all is well", "all is well"},
		"a value":              {"key=" + secret + " ok", "key=*** ok"},
		"twice":                {"hunter2hunter2", "******"},
		"a value of 3 bytes":   {"abc", "abc"},
		"two values":           {secret + "hunter2", "******"},
		"base64":               {"b64 " + base64.StdEncoding.EncodeToString([]byte(secret)) + " end", "b64 *** end"},
		"base64 without pads":  {"b64 " + base64.RawURLEncoding.EncodeToString([]byte(secret)) + " end", "b64 *** end"},
		"hex":                  {"hex " + hex.EncodeToString([]byte(secret)), "hex ***"},
		"hex in capitals":      {"hex " + strings.ToUpper(hex.EncodeToString([]byte(secret))), "hex ***"},
		"in a query":           {"GET /?key=" + url.QueryEscape(secret) + "&a=b", "GET /?key=***&a=b"},
		"in a path":            {"GET /" + url.PathEscape(secret) + "/x", "GET /***/x"},
		"in JSON":              {`{"key":` + string(quoted) + `}`, `{"key":"***"}`},
		"Go's %q":              {fmt.Sprintf("key %q", secret), `key "***"`},
		"end of a value":       {secret[5:] + " and more", "*** and more"},
		"beginning of a value": {"and less " + secret[:9], "and less ***"},
		"part of a value":      {secret[3:20], "***"},
		"part of base64":       {base64.StdEncoding.EncodeToString([]byte(secret))[7:] + " x", "*** x"},
		"a line of a value":    {"read MIIEvQIBADANBgkqhkiG here", "read *** here"},
		"all lines":            {strings.TrimSpace(pem) + ".", "***."},
		"a line that is cut":   {"ADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n", "***"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, v.Blank(c.text)) })
	}
	t.Run("base64 of more", func(t *testing.T) {
		for _, user := range []string{"", "u", "us", "use"} {
			for _, after := range []string{"", "x", "xy"} {
				text := base64.StdEncoding.EncodeToString([]byte(user + secret + after))
				got := v.Blank("basic " + text)
				require.Contains(t, got, Mark)
				require.LessOrEqual(t, len(got), len("basic ")+len(Mark)+9, "%q %q: %s", user, after, got)
			}
		}
	})
	t.Run("values that are not known", func(t *testing.T) {
		var unknown *Values
		require.False(t, unknown.Known())
		require.True(t, New().Known())
		require.Equal(t, "as it is", unknown.Blank("as it is"))
	})
	t.Run("with more", func(t *testing.T) {
		require.Same(t, v, v.With("hunter2"))
		require.Equal(t, "*** ***", v.With("correct-horse").Blank("hunter2 correct-horse"))
		require.True(t, (*Values)(nil).With().Known())
	})
}

// TestBlankProperty checks that no piece of a value of MinLength or more is left, however a text is
// cut.
func TestBlankProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Values and other text have no letters in common, so every letter of a value that is left
		// is recognized.
		values := rapid.SliceOfN(rapid.StringMatching(`[A-F0-9]{4,40}`), 1, 3).Draw(t, "values")
		var b strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			b.WriteString(rapid.StringMatching(`[ \nxyz]{0,5} `).Draw(t, "text"))
			b.WriteString(rapid.SampledFrom(values).Draw(t, "value"))
		}
		text := b.String()
		text = text[rapid.IntRange(0, len(text)).Draw(t, "from"):]
		text = text[:rapid.IntRange(0, len(text)).Draw(t, "to")]
		for _, word := range strings.FieldsFunc(New(values...).Blank(text), func(r rune) bool { return strings.ContainsRune(" \nxyz*", r) }) {
			require.Less(t, len(word), MinLength, "of %q", text)
		}
	})
}
