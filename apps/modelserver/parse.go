package modelserver

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// ParseArgs parses args and the environment as the program does, but ignores unknown flags and words. It is for callers
// that run a Server in place of another program, with the command line of that program.
//
// A command line of an engine, such as vllm serve MODEL, is parsed with all flags of the engine. Then the error is a
// *CommandLineError. Settings that the engine does not have come from MODELSERVER_*.
//
// lookup reads the environment. Nil means an empty environment. A flag overrides the environment. portGiven reports
// whether a flag or the environment sets the port. The error names a value that does not fit its flag.
func ParseArgs(args []string, lookup func(name string) (value string, ok bool)) (cfg Config, portGiven bool, err error) {
	if lookup == nil {
		lookup = func(string) (string, bool) { return "", false }
	}
	parser, err := kong.New(&cfg, kong.Name("modelserver"), kong.DefaultEnvars("MODELSERVER"), kong.NoDefaultHelp())
	if err != nil {
		return Config{}, false, fmt.Errorf("modelserver command line: %w", err)
	}
	engine, rest := engineOf(args)
	flags := map[string]*kong.Flag{}
	given := map[string]bool{}
	var known []string
	for _, flag := range parser.Model.Flags {
		flags[flag.Name] = flag
		for _, name := range flag.Envs {
			// An engine has its own flags for host, port and model, and does not read PORT.
			if value, ok := lookup(name); ok && (engine == nil || flag.Name != "port" && flag.Name != "host" && flag.Name != "model") {
				known = append(known, "--"+flag.Name+"="+value)
				given[flag.Name] = true
				break
			}
		}
		// The environment of this process must not be read.
		flag.Envs, flag.Value.Tag.Envs = nil, nil
	}
	for i := 0; i < len(args) && engine == nil; i++ {
		name, _, joined := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		flag := flags[name]
		if flag == nil || !strings.HasPrefix(args[i], "--") {
			continue
		}
		given[name] = true
		switch {
		case joined || flag.IsBool():
			known = append(known, args[i])
		case i+1 < len(args):
			known = append(known, args[i]+"="+args[i+1])
			i++
		default:
			return Config{}, false, fmt.Errorf("modelserver command line: %s needs a value", args[i])
		}
	}
	if _, err := parser.Parse(known); err != nil {
		return Config{}, false, fmt.Errorf("modelserver command line: %w", err)
	}
	if engine == nil {
		return cfg, given["port"], nil
	}
	if err := engine.parseFlags(&cfg, rest, ownSettings{given, lookup}); err != nil {
		return Config{}, false, err
	}
	return cfg, true, nil
}
