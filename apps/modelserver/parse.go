package modelserver

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// ParseArgs reads args and environment as the program's command line does, and
// leaves aside what it does not know: other flags, with or without a value, and
// words that belong to none. It is for those who run servers in the place of
// another program, whose command line this may really be.
//
// lookup is the environment; nil means an empty one. A flag beats the environment. portGiven
// reports whether either names the port. The error is about a value that does not fit its flag.
func ParseArgs(args []string, lookup func(name string) (value string, ok bool)) (cfg Config, portGiven bool, err error) {
	parser, err := kong.New(&cfg, kong.Name("modelserver"), kong.DefaultEnvars("MODELSERVER"), kong.NoDefaultHelp())
	if err != nil {
		return Config{}, false, fmt.Errorf("modelserver command line: %w", err)
	}
	flags := map[string]*kong.Flag{}
	var known []string
	for _, flag := range parser.Model.Flags {
		flags[flag.Name] = flag
		for _, name := range flag.Envs {
			if lookup == nil {
				break
			}
			if value, ok := lookup(name); ok {
				known = append(known, "--"+flag.Name+"="+value)
				portGiven = portGiven || flag.Name == "port"
				break
			}
		}
		// The environment of this process is another's.
		flag.Envs, flag.Value.Tag.Envs = nil, nil
	}
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		flag := flags[name]
		if flag == nil || !strings.HasPrefix(args[i], "--") {
			continue
		}
		portGiven = portGiven || name == "port"
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
	return cfg, portGiven, nil
}
