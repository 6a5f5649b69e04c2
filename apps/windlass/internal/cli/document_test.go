package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

func TestDocument(t *testing.T) {
	t.Run("values that YAML parsers interpret differently are refused with line and fix", func(t *testing.T) {
		for file, want := range map[string]string{
			"app: a\nreplicas: 010":                               "line 2: replicas: 010 is 10 to some YAML parsers and 8 to others: write 10",
			"app: a\nports:\n- name: http\n  port: 07070":         "line 4: ports[0].port: 07070 is 7070 to some YAML parsers and 3640 to others: write 7070",
			"app: a\nresources: {memoryMib: 0512}":                "line 2: resources.memoryMib: 0512 is 512 to some YAML parsers and 330 to others: write 512",
			"app: a\nreplicas: 09":                                "replicas: 09 is not a number to every YAML parser: write 9",
			"app: a\nreplicas: 0o10":                              "replicas: 0o10 is not a number to every YAML parser: write 8",
			"app: a\nreplicas: 0x10":                              "replicas: 0x10 is not a number to every YAML parser: write 16",
			"app: a\nreplicas: 0b11":                              "replicas: 0b11 is not a number to every YAML parser: write 3",
			"app: a\nreplicas: 1_000":                             "replicas: 1_000 is not a number to every YAML parser: write 1000",
			"app: a\nreplicas: 1:30":                              "replicas: want a whole number, got 1:30",
			"app: a\nrollout: {maxSurge: 010}":                    "rollout.maxSurge: 010 is 10 to some YAML parsers and 8 to others: write 10",
			"app: a\nregions: [no]":                               "regions[0]: no is not a text: put it in quotes",
			"app: a\nversionLabel: 010":                           "versionLabel: 010 is not a text: put it in quotes",
			"app: a\nenv: {A: off}":                               "env.A: off is not a text: put it in quotes",
			"app: a\nrollout: {analysis: [{max: 01.5}]}":          "rollout.analysis[0].max: want a number, got 01.5",
			"app: a\nrollout: {analysis: [{max: .inf}]}":          "rollout.analysis[0].max: want a number, got .inf",
			"app: a\nreplicas: ~":                                 "replicas: want a whole number, got nothing",
			"app: a\nreplicas: !!float 1":                         "",
			"app: a\nreplicas: !!int 0x10":                        "replicas: the tag !!int is not known here: remove it",
			"app: a\nenv: !!set {A, B}":                           "env: the tag !!set is not known here: remove it",
			"app: a\n? [a]\n: 1":                                  "line 2: a name is a mapping or a list",
			"app: a\nenv: {A: 1,\n A: 2}":                         "line 3: env.A: given twice, first in line 2: keep one of them",
			"{\"app\": \"a\",\n\"replicas\": 1, \"replicas\": 2}": "line 2: replicas: given twice, first in line 2",
			"app: a\ncommand: a b c":                              "line 2: command: want a list, got a b c: write [a, b, c]",
			"app: a\ncommand: serve --n 1":                        `write [serve, --n, "1"]`,
			"app: a\nregions: eu, us":                             "write [eu, us]",
			"app: a\nenv: &e {A: *e}":                             "env.A: *e refers to a value that contains it",
			"app: a\nenv: {<<: [x]}":                              "env.<<: want an alias of a mapping",
			"\xff":                                                "not UTF-8",
		} {
			_, err := parseAppFile([]byte(file))
			if want == "" {
				require.NoError(t, err, file)
				continue
			}
			require.ErrorContains(t, err, want, file)
		}
	})
	t.Run("a second document is refused", func(t *testing.T) {
		for file, want := range map[string]string{
			"app: a\n---\napp: b\n":                       "line 3: a second document begins: a file holds one app, so put it into a file of its own",
			"---\napp: a\n...\n---\n# b\n\nreplicas: 2\n": "line 7: a second document begins",
			"app: a\n---\n\t}{ garbage\n":                 "line 3: found character",
			"{\"app\": \"a\"}\n{\"app\": \"b\"}":          "line 2: a second value begins",
			"{\"app\": \"a\"}\n\n[1]":                     "line 3: a second value begins",
			"{\"app\": \"a\"}\n---\n{\"app\": \"b\"}":     "line 3: a second document begins",
			"app: a\n---\n- x\n---\n- y\n":                "line 3: a second document begins",
		} {
			_, err := parseAppFile([]byte(file))
			require.ErrorContains(t, err, want, file)
		}
		for _, file := range []string{"---\napp: a\n", "app: a\n---\n", "---\n---\napp: a\n...\n---\n# nothing\n", "{\"app\": \"a\"}\n\n"} {
			_, err := parseAppFile([]byte(file))
			require.NoError(t, err, file)
		}
	})
	t.Run("written fields win over merged ones, and earlier merged ones over later ones", func(t *testing.T) {
		f, err := parseAppFile([]byte(`
app: a
env: &base {A: "1", B: "1"}
overrides:
- regions: [eu]
  env:
    B: "2"
    <<: *base
- regions: [us]
  env: {<<: [{A: "3"}, *base], C: "4"}
- {"env": {"<<": "x"}}
`))
		require.NoError(t, err)
		require.Equal(t, map[string]string{"A": "1", "B": "2"}, f.Spec.Overrides[0].Env)
		require.Equal(t, map[string]string{"A": "3", "B": "1", "C": "4"}, f.Spec.Overrides[1].Env)
		require.Equal(t, map[string]string{"<<": "x"}, f.Spec.Overrides[2].Env)
		_, err = parseAppFile([]byte("app: a\nenv: &base {A: \"1\"}\noverrides:\n- env:\n    <<: *base\n    B: \"2\"\n    B: \"3\"\n"))
		require.ErrorContains(t, err, "line 7: overrides[0].env.B: given twice, first in line 6")
		_, err = parseAppFile([]byte("app: a\noverrides:\n- resources: &base {memoryMib: 010}\n- resources: {<<: *base}\n"))
		require.ErrorContains(t, err, "line 3: overrides[0].resources.memoryMib: 010")
	})
	t.Run("values with one meaning are accepted", func(t *testing.T) {
		f, err := parseAppFile([]byte("app: a\nreplicas: +4\nresources: {memoryMib: 1e3, cpuMillicores: 250.0}\nminReady: !!int 2\n" +
			"routing: {requireApiKey: on, crossRegion: off}\nrollout: {autoRollback: no, analysis: [{name: m, max: .5, min: -1e-3}]}\nimage: !!str 010\n"))
		require.NoError(t, err)
		require.EqualValues(t, 4, f.Spec.GetReplicas())
		require.EqualValues(t, 1000, f.Spec.Resources.MemoryMib)
		require.EqualValues(t, 250, f.Spec.Resources.CpuMillicores)
		require.Equal(t, "010", f.Spec.Image)
		require.True(t, f.Spec.Routing.RequireApiKey)
		require.Equal(t, windlassv1.RoutingPolicy_CROSS_REGION_OFF, f.Spec.Routing.CrossRegion)
		require.False(t, f.Rollout.AutoRollback.GetEnabled())
		require.InDelta(t, 0.5, f.Rollout.Analysis[0].GetMax(), 0)
		require.InDelta(t, -0.001, f.Rollout.Analysis[0].GetMin(), 0)
	})
	t.Run("JSON is read as JSON", func(t *testing.T) {
		f, err := parseAppFile([]byte("{\n\t\"app\": \"a\",\n\t\"message\": \"\\ud83d\\ude00 \\/\",\n\t\"replicas\": 2\n}\n"))
		require.NoError(t, err)
		require.True(t, proto.Equal(&windlassv1.DeploymentSpec{Message: "😀 /", Replicas: new(int32(2))}, f.Spec))
		_, err = parseAppFile([]byte("{\n\t\"app\": \"a\",\n\t\"replcas\": 2\n}\n"))
		require.EqualError(t, err, "line 3: replcas: no such field: did you mean replicas?")
	})
	t.Run("aliases cannot make a small file large", func(t *testing.T) {
		text := "app: a\nargs: &a0 [x, x, x, x, x, x, x, x, x]\n"
		for i := range 9 {
			n := string(rune('0' + i))
			text += "k" + n + ": &a" + string(rune('1'+i)) + " [" + strings.TrimSuffix(strings.Repeat("*a"+n+", ", 9), ", ") + "]\n"
		}
		_, err := parseAppFile([]byte(text))
		require.ErrorContains(t, err, "more than 100000 values")
	})
}

func TestReadSecret(t *testing.T) {
	for text, want := range map[string]string{"a\n": "a", "a\nb\r\n\n": "a\nb", strings.Repeat("x", maxSecret): strings.Repeat("x", maxSecret)} {
		got, err := (&app{Config: Config{Stdin: strings.NewReader(text)}}).readSecret("")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for text, want := range map[string]string{
		"": "nothing on standard input", "\n": "nothing on standard input", "a\x00b": "not valid UTF-8", "\xff": "not valid UTF-8",
		strings.Repeat("x", maxSecret+1): "larger than 1024 KiB",
	} {
		_, err := (&app{Config: Config{Stdin: strings.NewReader(text)}}).readSecret("")
		require.ErrorContains(t, err, want)
	}
}
