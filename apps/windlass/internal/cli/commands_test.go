package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// commandRun is a way to run a command.
type commandRun struct {
	args  []string
	stdin string
	// watch changes the states that WatchApp sends.
	watch func(*windlassv1.WatchAppResponse)
	// answers change the answers of methods, by name.
	answers map[string]func(proto.Message)
	// fails means that the exit code is not 0 although the control plane answers.
	fails bool
	// offline means that the command needs no control plane.
	offline bool
}

// commandRuns has runs of each command by its path, with an app file and a folder with a model.
func commandRuns(server, file, model string) map[string][]commandRun {
	deleted := func(r *windlassv1.WatchAppResponse) { r.Deleted = true }
	// Names of files cannot be hostile.
	named := map[string]func(proto.Message){"GetApp": func(m proto.Message) {
		app := m.ProtoReflect().Mutable(m.ProtoReflect().Descriptor().Fields().ByName("app")).Message()
		for _, field := range []protoreflect.Name{"project_name", "environment_name", "name"} {
			app.Set(app.Descriptor().Fields().ByName(field), protoreflect.ValueOfString("a"))
		}
	}}
	const traces = "../../../../deployments/examples/traces/"
	const adapter = "../../../../deployments/examples/adapter-sql.yaml"
	const definition = "../../../../deployments/examples/presets/modelserver.yaml"
	return map[string][]commandRun{
		"deploy": {
			{args: []string{"deploy", "-f", file}},
			{args: []string{"deploy", "-f", file, "--wait=false"}},
			{args: []string{"deploy", "-f", file, "--diff"}},
			{args: []string{"deploy", "-f", file, "--dry-run", "server"}, fails: true},
			{args: []string{"deploy", "-f", filepath.Dir(file)}},
			{args: []string{"deploy", "-f", filepath.Dir(file), "--prune", "--yes", "--wait=false"}},
			{args: []string{"deploy", "-f", filepath.Dir(file), "--prune", "--dry-run", "server"}, fails: true},
			{args: []string{"deploy", "-f", file}, fails: true, watch: func(r *windlassv1.WatchAppResponse) {
				r.Rollout.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED
			}},
		},
		"export": {
			{args: []string{"export", "a", "--force"}, answers: named},
			{args: []string{"export", "--all", "--folder", filepath.Join(filepath.Dir(file), ".exported"), "--force"}, answers: named},
		},
		"dashboard":         {{args: []string{"dashboard"}}},
		"top":               {{args: []string{"top", "a"}}, {args: []string{"top", "a", "--watch"}}},
		"url":               {{args: []string{"url", "a"}}, {args: []string{"url", "a", "--all"}}},
		"explain":           {{args: []string{"explain"}, offline: true}, {args: []string{"explain", "CrashLoop"}, offline: true}},
		"preset list":       {{args: []string{"preset", "list"}, offline: true}, {args: []string{"preset", "list", "--remote"}}},
		"preset show":       {{args: []string{"preset", "show", "vllm"}, offline: true}, {args: []string{"preset", "show", "vllm", "--remote"}}},
		"preset diff":       {{args: []string{"preset", "diff", "a"}}},
		"preset set":        {{args: []string{"preset", "set", "a", "-f", definition}}, {args: []string{"preset", "set", "a", "-f", definition, "--check"}}},
		"preset history":    {{args: []string{"preset", "history", "a"}}},
		"preset delete":     {{args: []string{"preset", "delete", "a"}}},
		"preset render":     {{args: []string{"preset", "render", "vllm", "--model", "hf://org/m"}, offline: true}, {args: []string{"preset", "render", "vllm"}, fails: true, offline: true}, {args: []string{"preset", "render", "custom:a", "--model", "hf://org/m", "--definition", definition}, offline: true}},
		"model inspect":     {{args: []string{"model", "inspect", model}, offline: true}},
		"model plan":        {{args: []string{"model", "plan", adapter}, fails: true}},
		"plan":              {{args: []string{"plan", "-f", file}, fails: true}},
		"scale":             {{args: []string{"scale", "a", "--replicas", "2"}}, {args: []string{"scale", "a", "--replicas", "2", "--wait=false"}}, {args: []string{"scale", "a", "--replicas", "2", "--current-replicas", "1"}}},
		"scaling status":    {{args: []string{"scaling", "status", "a"}}},
		"scaling why":       {{args: []string{"scaling", "why", "a"}}},
		"scaling simulate":  {{args: []string{"scaling", "simulate", "-f", traces + "crowd.yaml", "--trace", traces + "flash-crowd.csv"}, offline: true}},
		"rollback":          {{args: []string{"rollback", "a"}}, {args: []string{"rollback", "a", "--wait=false"}}},
		"cancel":            {{args: []string{"cancel", "a"}}},
		"delete":            {{args: []string{"delete", "a", "--yes"}, watch: deleted}, {args: []string{"delete", "a", "--yes", "--wait=false"}}},
		"env list":          {{args: []string{"env", "list"}}, {args: []string{"env", "list", "a"}}},
		"env set":           {{args: []string{"env", "set", "a", "A=b"}}, {args: []string{"env", "set", "a", "A=b", "--wait=false"}}},
		"env shared":        {{args: []string{"env", "shared", "A=b"}}},
		"secret set":        {{args: []string{"secret", "set", "a"}, stdin: "x"}, {args: []string{"secret", "set", "a", "--wait=false"}, stdin: "x"}},
		"secret list":       {{args: []string{"secret", "list"}}},
		"secret delete":     {{args: []string{"secret", "delete", "a"}}},
		"restart":           {{args: []string{"restart", "ins_1"}}},
		"protection list":   {{args: []string{"protection", "list"}}},
		"protection set":    {{args: []string{"protection", "set", "--approvals", "2", "--reason", "b"}}},
		"protection remove": {{args: []string{"protection", "remove", "--environment", "default/production"}}},
		"notify list":       {{args: []string{"notify", "list"}}},
		"notify set":        {{args: []string{"notify", "set", "a", "--url", "https://example.com/hook", "--on", "failed", "--format", "slack"}}},
		"notify remove":     {{args: []string{"notify", "remove", "a"}}},
		"notify rotate":     {{args: []string{"notify", "rotate", "a", "--keep", "1h"}}},
		"notify test":       {{args: []string{"notify", "test", "a"}, fails: true}},
		"notify deliveries": {{args: []string{"notify", "deliveries", "a", "--state", "dead"}}},
		"notify replay":     {{args: []string{"notify", "replay", "a"}}},
		"freeze list":       {{args: []string{"freeze", "list"}}},
		"freeze set":        {{args: []string{"freeze", "set", "a", "--reason", "b"}}},
		"freeze lift":       {{args: []string{"freeze", "lift", "a"}}},
		"pin":               {{args: []string{"pin", "a", "v2", "--weight", "2%"}}, {args: []string{"pin", "a", "v2", "--weight", "2%", "--wait=false"}}},
		"unpin":             {{args: []string{"unpin", "a", "v3"}}, {args: []string{"unpin", "a", "v3", "--wait=false"}}},
		"pins":              {{args: []string{"pins", "a"}}},
		"domain list":       {{args: []string{"domain", "list"}}},
		"domain add":        {{args: []string{"domain", "add", "a.example", "--app", "a"}}},
		"domain verify":     {{args: []string{"domain", "verify", "a.example", "--app", "a"}}},
		"domain remove":     {{args: []string{"domain", "remove", "a.example", "--app", "a"}}},
		"app-key create":    {{args: []string{"app-key", "create", "a", "--app", "a"}}},
		"app-key list":      {{args: []string{"app-key", "list"}}},
		"app-key revoke":    {{args: []string{"app-key", "revoke", "a", "--app", "a"}}},
		"rollout status":    {{args: []string{"rollout", "status", "a"}}, {args: []string{"rollout", "status", "a", "--watch"}}},
		"rollout abort":     {{args: []string{"rollout", "abort", "a"}}},
		"rollout pause":     {{args: []string{"rollout", "pause", "a"}}},
		"rollout resume":    {{args: []string{"rollout", "resume", "a"}}},
		"rollout retry":     {{args: []string{"rollout", "retry", "a"}}},
		"rollout promote":   {{args: []string{"rollout", "promote", "a"}}},
		"rollout approve":   {{args: []string{"rollout", "approve", "a"}}},
		"rollout skip-bake": {{args: []string{"rollout", "skip-bake", "a"}}},
		"status": {
			{args: []string{"status"}},
			{args: []string{"status", "a"}},
			{args: []string{"status", "a", "--watch"}, watch: deleted},
		},
		"list apps":                 {{args: []string{"list", "apps"}}},
		"list deployments":          {{args: []string{"list", "deployments", "a"}}},
		"list instances":            {{args: []string{"list", "instances", "a"}}},
		"list regions":              {{args: []string{"list", "regions"}}},
		"history":                   {{args: []string{"history", "a"}}},
		"route list":                {{args: []string{"route", "list"}}},
		"route show":                {{args: []string{"route", "show", "a"}}},
		"logs":                      {{args: []string{"logs", "ins_1"}}, {args: []string{"logs", "a"}}},
		"audit":                     {{args: []string{"audit"}}},
		"login":                     {{args: []string{"login", "--server", server}, stdin: "wl_x"}},
		"region create":             {{args: []string{"region", "create", "a"}}, {args: []string{"region", "create", "a", "--platform"}}},
		"region token":              {{args: []string{"region", "token", "a"}}},
		"region list":               {{args: []string{"region", "list"}}},
		"region show":               {{args: []string{"region", "show", "a"}}},
		"region label":              {{args: []string{"region", "label", "a", "tier=small"}}},
		"region delete":             {{args: []string{"region", "delete", "a"}}},
		"region revoke":             {{args: []string{"region", "revoke", "a"}}},
		"region prune":              {{args: []string{"region", "prune", "a"}}, {args: []string{"region", "prune", "a", "--approve"}}},
		"region grant":              {{args: []string{"region", "grant", "a", "--workspace", "b"}}, {args: []string{"region", "grant", "a", "--workspace", "b", "--trust-all-tenants"}}},
		"region ungrant":            {{args: []string{"region", "ungrant", "a", "--workspace", "b"}}},
		"region gateways":           {{args: []string{"region", "gateways"}}, {args: []string{"region", "gateways", "--waiting"}}},
		"region approve-gateway":    {{args: []string{"region", "approve-gateway", "reg_a", "https://a.example.com"}}},
		"region disapprove-gateway": {{args: []string{"region", "disapprove-gateway", "reg_a"}}},
		"region evict":              {{args: []string{"region", "evict", "a", "--workspace", "b"}}},
		"workspace create":          {{args: []string{"workspace", "create", "a"}}},
		"workspace list":            {{args: []string{"workspace", "list"}}},
		"workspace rename":          {{args: []string{"workspace", "rename", "a", "b"}}},
		"workspace delete":          {{args: []string{"workspace", "delete", "a", "--yes"}}},
		"project create":            {{args: []string{"project", "create", "a"}}},
		"project list":              {{args: []string{"project", "list"}}},
		"project rename":            {{args: []string{"project", "rename", "a", "b"}}},
		"project delete":            {{args: []string{"project", "delete", "a", "--yes"}}},
		"environment create":        {{args: []string{"environment", "create", "a", "--variable", "A=b"}}},
		"environment list":          {{args: []string{"environment", "list"}}, {args: []string{"environment", "list", "a"}}},
		"environment rename":        {{args: []string{"environment", "rename", "a", "b"}}},
		"environment delete":        {{args: []string{"environment", "delete", "a", "--yes"}}},
		"workspace quota":           {{args: []string{"workspace", "quota", "--gpus", "3", "--yes"}}},
		"workspace features":        {{args: []string{"workspace", "features"}}, {args: []string{"workspace", "features", "a", "--tier", "b", "--deny", "canary"}}},
		"workspace tier list":       {{args: []string{"workspace", "tier", "list"}}},
		"workspace tier set":        {{args: []string{"workspace", "tier", "set", "a", "--features", "canary"}}},
		"workspace tier delete":     {{args: []string{"workspace", "tier", "delete", "a"}}},
		"key create":                {{args: []string{"key", "create", "a"}}},
		"key list":                  {{args: []string{"key", "list"}}},
		"key revoke":                {{args: []string{"key", "revoke", "a"}}},
		"members list":              {{args: []string{"members", "list"}}},
		"members remove":            {{args: []string{"members", "remove", "a"}}},
		"members restore":           {{args: []string{"members", "restore", "a"}}},
		"members rule set":          {{args: []string{"members", "rule", "set", "a", "--role", "viewer", "--group", "b"}}},
		"members rule list":         {{args: []string{"members", "rule", "list"}}},
		"members rule remove":       {{args: []string{"members", "rule", "remove", "a"}}},
		"federation add":            {{args: []string{"federation", "add", "a", "--role", "viewer", "--issuer", "https://b", "--claim", "sub=c"}}},
		"federation list":           {{args: []string{"federation", "list"}}},
		"federation remove":         {{args: []string{"federation", "remove", "a"}}},
		"logout":                    {{args: []string{"logout"}, offline: true}},
		"whoami":                    {{args: []string{"whoami"}}},
		"version":                   {{args: []string{"version"}, offline: true}},
		"doctor":                    {{args: []string{"doctor"}, offline: true}},
		"support-bundle":            {{args: []string{"support-bundle", "--file", file + ".tar.gz"}, offline: true}},
	}
}

// collectCommands adds the paths of runnable commands without subcommands.
func collectCommands(c *cobra.Command, path string, into map[string]bool) {
	for _, sub := range c.Commands() {
		name := strings.TrimSpace(path + " " + sub.Name())
		if sub.HasSubCommands() {
			collectCommands(sub, name, into)
		} else if sub.Runnable() && sub.Name() != "help" && !strings.HasPrefix(name, "completion") {
			into[name] = true
		}
	}
}

// commandResult is the result of a command.
type commandResult struct {
	code           int
	stdout, stderr string
}

// runCommand runs a command against a server, as Main does.
func runCommand(t *testing.T, server *fakeServer, terminal bool, run commandRun, more ...string) commandResult {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := map[string]string{"WINDLASS_SERVER": server.URL, "WINDLASS_API_KEY": "wl_x", "HOME": t.TempDir(), "NO_COLOR": "1"}
	server.change(func() {
		if server.watch = run.watch; run.answers != nil {
			server.answers = run.answers
		}
	})
	defer server.change(func() {
		if run.answers != nil {
			server.answers = nil
		}
	})
	terminals := func(io.Writer) bool { return terminal }
	root := New(Config{
		Stdin: strings.NewReader(run.stdin), Stdout: &stdout, Stderr: &stderr, IsTerminal: terminals,
		Getenv: func(name string) string { return env[name] }, HTTPClient: server.Client(),
	})
	root.SetArgs(append(append(slices.Clone(run.args), "--config", filepath.Join(env["HOME"], "config.yaml")), more...))
	code := 0
	if err := root.ExecuteContext(t.Context()); err != nil {
		code = Report(newScreen(&stderr, terminals), err)
	}
	return commandResult{code, stdout.String(), stderr.String()}
}

func TestCommands(t *testing.T) {
	server := newFakeServer(t)
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte("app: a\ncommand: [x]\nregions: [eu]\n"), 0o600))
	table := commandRuns(server.URL, file, modelFolder(t))
	found := map[string]bool{}
	collectCommands(New(Config{Stdout: io.Discard, Stderr: io.Discard}), "", found)
	delete(found, "exit-codes")
	require.ElementsMatch(t, slices.Collect(maps.Keys(found)), slices.Collect(maps.Keys(table)), "each command has its runs here")

	for name, runs := range table {
		for _, run := range runs {
			t.Run(strings.Join(run.args, " "), func(t *testing.T) {
				for _, output := range []string{"table", "json", "yaml"} {
					for _, terminal := range []bool{false, true} {
						got := runCommand(t, server, terminal, run, "-o", output)
						require.Equal(t, run.fails, got.code != 0, "%s\n%s", got.stdout, got.stderr)
						isData := output != "table" || name == "logs"
						if terminal || !isData {
							mustBePrintable(t, got.stdout)
						}
						mustBePrintable(t, got.stderr)
						switch output {
						case "json":
							mustBeJSON(t, got.stdout)
						case "yaml":
							mustBeYAML(t, got.stdout)
						}
					}
				}
				if name == "logs" && run.args[1] == "ins_1" {
					require.Equal(t, hostile, runCommand(t, server, false, run).stdout, "a file gets the bytes as they are")
				}
			})
			t.Run(strings.Join(run.args, " ")+", refused", func(t *testing.T) {
				server.change(func() { server.refuses = true })
				defer server.change(func() { server.refuses = false })
				for _, output := range []string{"table", "json", "yaml"} {
					got := runCommand(t, server, true, run, "-o", output)
					mustBePrintable(t, got.stdout+got.stderr)
					if run.offline {
						continue
					}
					require.NotZero(t, got.code)
					require.Contains(t, got.stderr, "日本")
					if name == "plan" {
						continue // for this command, the refusal is the answer
					}
					require.Empty(t, got.stdout)
				}
			})
		}
	}
}

func mustBePrintable(t *testing.T, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%q", text)
	if i := strings.IndexFunc(text, unsafeToPrint); i >= 0 {
		require.Fail(t, "the text controls a terminal", "%q", text[max(0, i-40):min(len(text), i+40)])
	}
}

func mustBeJSON(t *testing.T, text string) {
	t.Helper()
	mustDecode(t, text, json.NewDecoder(strings.NewReader(text)).Decode)
}

func mustBeYAML(t *testing.T, text string) {
	t.Helper()
	mustDecode(t, text, yaml.NewDecoder(strings.NewReader(text)).Decode)
}

// mustDecode requires one document or more.
func mustDecode(t *testing.T, text string, decode func(any) error) {
	t.Helper()
	for n := 0; ; n++ {
		var v any
		err := decode(&v)
		if errors.Is(err, io.EOF) {
			require.Positive(t, n, "there is no output")
			return
		}
		require.NoError(t, err, text)
	}
}

func TestCommands_HaveOneShape(t *testing.T) {
	server := newFakeServer(t)
	file := filepath.Join(t.TempDir(), "app.yaml")
	require.NoError(t, os.WriteFile(file, []byte("app: a\ncommand: [x]\nregions: [eu]\n"), 0o600))
	shape := func(run commandRun) []string {
		got := runCommand(t, server, false, run, "-o", "json")
		var fields map[string]any
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &fields), got.stdout)
		return slices.Sorted(maps.Keys(fields))
	}
	for _, args := range [][]string{
		{"deploy", "-f", file}, {"scale", "a", "--replicas", "2"}, {"rollback", "a"}, {"env", "set", "a", "A=b"}, {"pin", "a", "v2", "--weight", "2"}, {"unpin", "a", "v2"},
	} {
		want := shape(commandRun{args: append(slices.Clone(args), "--wait=false")})
		for name, watch := range map[string]func(*windlassv1.WatchAppResponse){
			"it succeeds": nil,
			"it fails": func(r *windlassv1.WatchAppResponse) {
				r.Rollout.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED
				r.App.Pins[0].Regions[0].State = windlassv1.PinRegion_STATE_FAILED
			},
			"it is gone": func(r *windlassv1.WatchAppResponse) { r.App.Pins = nil },
		} {
			require.Equal(t, want, shape(commandRun{args: args, watch: watch}), "%v: %s", args, name)
		}
	}
}

func TestExitCodes(t *testing.T) {
	server := newFakeServer(t)
	for status, code := range map[windlassv1.RolloutStatus]int{
		windlassv1.RolloutStatus_ROLLOUT_STATUS_SUCCEEDED: 0, windlassv1.RolloutStatus_ROLLOUT_STATUS_FAILED: 1,
		windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED: 1, windlassv1.RolloutStatus_ROLLOUT_STATUS_SUPERSEDED: codeSuperseded,
	} {
		watch := func(r *windlassv1.WatchAppResponse) { r.Rollout.Status = status }
		for _, args := range [][]string{{"rollout", "status", "a", "--watch"}, {"env", "set", "a", "A=b"}, {"rollback", "a"}} {
			got := runCommand(t, server, false, commandRun{args: args, watch: watch})
			require.Equal(t, code, got.code, "%v %s: %s", args, status, got.stderr)
		}
		// The command asks for the rollout by its id, even if the app has a newer rollout.
		got := runCommand(t, server, false, commandRun{args: []string{"env", "set", "a", "A=b"}, watch: func(r *windlassv1.WatchAppResponse) {
			r.AskedRollout = proto.CloneOf(r.Rollout)
			r.AskedRollout.Status, r.Rollout.Id = status, "rol_newer"
		}}, "-o", "json")
		require.Equal(t, code, got.code, "%s: %s", status, got.stderr)
	}
	people := func(r *windlassv1.WatchAppResponse) {
		r.Rollout.Status, r.Rollout.FinishedAt, r.Rollout.Hold = windlassv1.RolloutStatus_ROLLOUT_STATUS_RUNNING, 0, nil
		r.Rollout.StartApproval = nil
		r.Rollout.Progress = inFlight(region("eu", func(g *windlassv1.RegionProgress) { g.WaitsForPromotion = true })).Progress
	}
	paused := func(r *windlassv1.WatchAppResponse) {
		people(r)
		r.Rollout.Progress.Paused, r.Rollout.Progress.PausedBy = true, pausedByItself
	}
	gated := func(r *windlassv1.WatchAppResponse) {
		people(r)
		r.Rollout.Progress = nil
		r.Rollout.StartApproval = &windlassv1.ApprovalProgress{Missing: "approval by 2 keys of role owner"}
	}
	for _, tc := range []struct {
		watch func(*windlassv1.WatchAppResponse)
		more  []string
		code  int
		says  string
	}{
		{people, nil, codePeople, "waits for promotion: windlass rollout promote"},
		{people, []string{"--until", "promotion"}, 0, "waits for promotion: windlass rollout promote"},
		{people, []string{"--until", "ready", "--patience", "1ns"}, codePatience, "still under way after 0s (--patience)\nv2 waits for promotion"},
		{gated, nil, codePeople, "waits for approval by 2 keys of role owner before it starts: windlass rollout approve"},
		{paused, nil, codePaused, "windlass rollout retry"},
		{paused, []string{"--until", "ready"}, codePaused, "windlass rollout retry"},
		{people, []string{"--until", "never"}, 1, `--until="never": use ready or promotion`},
	} {
		got := runCommand(t, server, false, commandRun{args: append([]string{"env", "set", "a", "A=b"}, tc.more...), watch: tc.watch})
		require.Equal(t, tc.code, got.code, got.stderr)
		require.Contains(t, got.stderr, tc.says)
	}
	// An abort on request is a success. The command follows the rollout before it goes back.
	server.change(func() {
		server.answers = map[string]func(proto.Message){"Rollback": func(m proto.Message) {
			effect := m.ProtoReflect().Descriptor().Fields().ByName("effect")
			m.ProtoReflect().Set(effect, protoreflect.ValueOfEnum(windlassv1.VersionEffect_VERSION_EFFECT_TOOK_BACK.Number()))
		}}
	})
	pictures := 0
	got := runCommand(t, server, false, commandRun{args: []string{"rollback", "a"}, watch: func(r *windlassv1.WatchAppResponse) {
		if people(r); pictures > 0 {
			r.Rollout.Status = windlassv1.RolloutStatus_ROLLOUT_STATUS_CANCELLED
		}
		pictures++
	}})
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 2, pictures)
	require.NotContains(t, got.stderr, "waits for promotion")

	help := runCommand(t, server, false, commandRun{args: []string{"help", "exit-codes"}})
	for _, code := range []string{"  3  ", "  4  ", "  5  ", "  6  ", "130  "} {
		require.Contains(t, help.stdout, code)
	}
}
