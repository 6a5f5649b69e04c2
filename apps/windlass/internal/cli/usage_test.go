package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a required flag that is missing", []string{"deploy"}, "windlass: windlass deploy: required flag(s) \"file\" not set; the usage is `windlass deploy"},
		{"a flag with a mistyped name", []string{"deploy", "--fil=x"}, "there is no --fil: did you mean --file?; the usage is"},
		{"an unknown flag", []string{"list", "apps", "--nonsense"}, "unknown flag: --nonsense; the usage is `windlass list apps"},
		{"a value that is not a number", []string{"rollback", "chat", "--to", "x"}, `--to="x": use a number (int`},
		{"a value that is not a duration", []string{"logs", "chat", "--since", "yesterday"}, `--since="yesterday": use a number with a unit, such as 30s, 10m or 1h30m; a day is 24h`},
		{"a role twice", []string{"scale", "chat", "--role", "prefill=1", "--role", "decode=2"}, `the flag already has the value prefill=1: give one value, and call again for another`},
		{"a region twice", []string{"scale", "chat", "--replicas", "1", "--region", "a", "--region", "b"}, `the flag already has the value a: give one value`},
		{"a duration twice", []string{"scale", "chat", "--replicas", "1", "--for", "1h", "--for", "2h"}, `the flag already has the value 1h0m0s: give one value`},
		{"a duration without a unit", []string{"rollback", "chat", "--patience=10"}, `--patience="10": use a number with a unit`},
		{"a value that is not a boolean", []string{"logs", "chat", "--follow=maybe"}, `--follow="maybe": use true or false`},
		{"an argument of a command without any", []string{"login", "https://x"}, "windlass login: takes no argument, found \"https://x\"; the usage is"},
		{"a missing argument", []string{"history"}, "windlass history: accepts 1 arg(s), received 0; the usage is `windlass history APP"},
		{"a plural for a command", []string{"apps"}, "list"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var errs bytes.Buffer
			root := New(Config{Stdout: &bytes.Buffer{}, Stderr: &errs, Getenv: func(string) string { return "" }})
			root.SetArgs(c.args)
			err := root.ExecuteContext(t.Context())
			require.Error(t, err)
			require.Equal(t, 1, Report(&errs, err))
			require.Contains(t, errs.String(), c.want)
			require.NotContains(t, errs.String(), "strconv")
			require.NotContains(t, errs.String(), "time: ")
		})
	}
}
