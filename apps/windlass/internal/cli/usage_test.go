package cli

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a required flag that is missing", []string{"deploy"}, "windlass deploy: give --file FILE|FOLDER; the usage is `windlass deploy"},
		{"a flag with the beginning of a name", []string{"deploy", "--fil=x"}, "windlass deploy: there is no --fil: did you mean --file? The usage is `windlass deploy"},
		{"a flag without a letter", []string{"scale", "chat", "--replcas", "1"}, "there is no --replcas: did you mean --replicas?"},
		{"a flag without a letter, and plural", []string{"scale", "chat", "--regins", "a"}, "there is no --regins: did you mean --region?"},
		{"a flag with swapped letters", []string{"deploy", "--fiel", "x"}, "there is no --fiel: did you mean --file?"},
		{"a flag with one dash", []string{"scale", "chat", "-replicas", "1"}, "there is no -replicas: did you mean --replicas?"},
		{"a flag with one dash and a value", []string{"scale", "chat", "-replicas=1"}, "there is no -replicas: did you mean --replicas?"},
		{"a letter that is no flag", []string{"scale", "chat", "-z"}, "unknown shorthand flag: 'z' in -z; the usage is"},
		{"a flag of dev without a letter", []string{"dev", "--detch"}, "there is no --detch: did you mean --detach?"},
		{"a command of a group without a letter", []string{"rollout", "prmote", "chat"}, "windlass rollout has no command \"prmote\". Did you mean `windlass rollout promote`?"},
		{"a command of dev without a letter", []string{"dev", "sttus"}, "windlass dev has no command \"sttus\". Did you mean `windlass dev status`?"},
		{"a command of a group that is like none", []string{"list", "foo"}, `windlass list has no command "foo": its commands are apps, deployments, instances and regions (see --help)`},
		{"one of several flags that is missing", []string{"scale", "chat"}, "windlass scale: give --replicas N, --end-hold or --role NAME=N; the usage is"},
		{"flags that exclude each other", []string{"scale", "chat", "--replicas", "1", "--role", "a=1"}, "windlass scale: --replicas and --role cannot be given together: give one of them; the usage is"},
		{"an unknown flag", []string{"list", "apps", "--nonsense"}, "unknown flag: --nonsense; the usage is `windlass list apps"},
		{"a value that is not a number", []string{"rollback", "chat", "--to", "x"}, `--to="x": use a number (int`},
		{"a value that is not a duration", []string{"logs", "chat", "--since", "yesterday"}, `--since="yesterday": use a number with a unit, such as 30s, 10m or 1h30m; a day is 24h`},
		{"a role twice", []string{"scale", "chat", "--role", "prefill=1", "--role", "decode=2"}, `the flag already has the value prefill=1: give one value, and call again for another`},
		{"a region twice", []string{"scale", "chat", "--replicas", "1", "--region", "a", "--region", "b"}, `the flag already has the value a: give one value`},
		{"a duration twice", []string{"scale", "chat", "--replicas", "1", "--for", "1h", "--for", "2h"}, `the flag already has the value 1h0m0s: give one value`},
		{"a duration without a unit", []string{"rollback", "chat", "--patience=10"}, `--patience="10": use a number with a unit`},
		{"a value that is not a boolean", []string{"logs", "chat", "--follow=maybe"}, `--follow="maybe": use true or false`},
		{"an argument of a command without any", []string{"login", "https://x"}, "windlass login: takes no argument, found \"https://x\"; the usage is"},
		{"a missing argument", []string{"history"}, "windlass history: the argument APP is missing; the usage is `windlass history APP"},
		{"the second argument missing", []string{"pin", "chat"}, "windlass pin: the argument VERSION is missing; the usage is"},
		{"two missing arguments", []string{"pin"}, "windlass pin: the arguments APP and VERSION are missing; the usage is"},
		{"a missing argument before others", []string{"region", "prune"}, "windlass region prune: the argument NAME is missing; the usage is"},
		{"an argument too many", []string{"history", "chat", "more"}, `windlass history: takes one argument, found also "more"; the usage is`},
		{"an argument too many for two", []string{"notify", "replay", "chat", "1", "2"}, `windlass notify replay: takes 2 arguments, found also "2"; the usage is`},
		{"a plural for a command", []string{"apps"}, "windlass has no command \"apps\". Did you mean `windlass list`?"},
		{"a command without a letter", []string{"depoy"}, "windlass has no command \"depoy\". Did you mean `windlass deploy`?"},
		{"help of a command without a letter", []string{"help", "depoy"}, "windlass has no command \"depoy\". Did you mean `windlass deploy`?"},
		{"help of a command that is like none", []string{"help", "nonsense"}, `windlass has no command "nonsense": its commands are `},
		{"help of a subcommand without a letter", []string{"help", "rollout", "prmote"}, "Did you mean `windlass rollout promote`?"},
		{"help of a topic without a letter", []string{"help", "exit-cods"}, "Did you mean `windlass exit-codes`?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var errs bytes.Buffer
			extra := &cobra.Command{Use: "dev", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
			extra.Flags().Bool("detach", false, "")
			extra.AddCommand(&cobra.Command{Use: "status", Run: func(*cobra.Command, []string) {}})
			root := New(Config{Extra: []*cobra.Command{extra}, Stdout: &bytes.Buffer{}, Stderr: &errs, Getenv: func(string) string { return "" }})
			root.SetArgs(c.args)
			err := root.ExecuteContext(t.Context())
			require.Error(t, err)
			require.Equal(t, 1, Report(&errs, err))
			require.Contains(t, errs.String(), c.want)
			require.NotContains(t, errs.String(), "strconv")
			require.NotContains(t, errs.String(), "time: ")
			require.NotContains(t, errs.String(), "windlass: windlass")
		})
	}
}

func TestHelp_ShowsCommandsAndTopics(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "windlass [command]"},
		{[]string{"help"}, "windlass [command]"},
		{[]string{"help", "rollout", "promote"}, "windlass rollout promote APP"},
		{[]string{"help", "exit-codes"}, "130  interrupted"},
		{[]string{"__complete", "help", "roll"}, "rollout\t"},
		{[]string{"__complete", "help", "rollout", "prom"}, "promote\t"},
	} {
		var out bytes.Buffer
		root := New(Config{Stdout: &out, Stderr: &bytes.Buffer{}, Getenv: func(string) string { return "" }})
		root.SetArgs(c.args)
		require.NoError(t, root.ExecuteContext(t.Context()), c.args)
		require.Contains(t, out.String(), c.want, c.args)
	}
}

// No command has a group of flags that belong together yet.
func TestCheckFlags_TogetherOrNotAtAll(t *testing.T) {
	c := &cobra.Command{Use: "sign --cert FILE --key FILE"}
	c.Flags().String("cert", "", "")
	c.Flags().String("key", "", "")
	c.MarkFlagsRequiredTogether("cert", "key")
	require.NoError(t, c.ParseFlags([]string{"--cert", "x"}))
	require.EqualError(t, checkFlags(c), "--cert FILE and --key FILE are given together or not at all: give --key, too")
}

// The errors about arguments count them by the usage line.
func TestNamedArgs_AgreeWithTheChecks(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			visit(sub)
		}
		if c.Args == nil {
			return
		}
		required, most := namedArgs(c.Use)
		require.NoError(t, c.Args(c, required), c.CommandPath())
		if most >= 0 {
			require.Error(t, c.Args(c, make([]string, most+1)), c.CommandPath())
		}
	}
	visit(New(Config{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}, Getenv: func(string) string { return "" }}))
}
