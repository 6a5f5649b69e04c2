package preset

import (
	"slices"
	"strings"
)

// flag is a flag and its values. Without a name it is a positional argument.
type flag struct {
	// name is the flag with its dashes, as the engine writes it: "--max-model-len".
	name   string
	values []string
}

// flags are in the order in which they were first set.
type flags []flag

// set replaces the values of the flag with the name, or adds the flag at the end.
func (f *flags) set(name string, values ...string) {
	if i := f.index(name); i >= 0 {
		(*f)[i].values = values
		return
	}
	*f = append(*f, flag{name, values})
}

func (f *flags) remove(name string) {
	*f = slices.DeleteFunc(*f, func(g flag) bool { return g.name == name })
}

func (f *flags) index(name string) int {
	return slices.IndexFunc(*f, func(g flag) bool { return name != "" && g.name == name })
}

func (f *flags) hasFlag(name string) bool { return f.index(name) >= 0 }

func (f *flags) toArgs() []string {
	var args []string
	for _, g := range *f {
		if g.name != "" {
			args = append(args, g.name)
		}
		args = append(args, g.values...)
	}
	return args
}

// canonicalFlag returns the flag that an alias stands for, and other names unchanged.
func (p *Preset) canonicalFlag(name string) string {
	if long, ok := p.Aliases[name]; ok {
		return long
	}
	return name
}

// IsFlag reports whether an argument is a flag and not a value: -1 is a value, and -tp is a flag.
func IsFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !strings.ContainsRune("0123456789.", rune(arg[1]))
}

// parse splits arguments into flags. The arguments between two flags are the values of the first.
func (p *Preset) parse(args []string) flags {
	var list flags
	for _, arg := range args {
		switch {
		case IsFlag(arg):
			name, value, joined := strings.Cut(arg, "=")
			g := flag{name: p.canonicalFlag(name)}
			if joined {
				g.values = []string{value}
			}
			list = append(list, g)
		case len(list) == 0 || list[len(list)-1].name == "":
			list = append(list, flag{values: []string{arg}})
		default:
			last := &list[len(list)-1]
			last.values = append(last.values, arg)
		}
	}
	return list
}

// Merge returns args with the flags of more. A flag in both stays in its place, with the values of more.
// Flags that only more has are added at the end, in order. If more has a flag twice, the last one counts.
// Positional arguments of more are added before the first flag of args.
func (p *Preset) Merge(args, more []string) []string {
	base, over := p.parse(args), p.parse(more)
	for _, g := range over {
		switch {
		case g.name != "":
			base.set(g.name, g.values...)
		case !slices.ContainsFunc(base, func(b flag) bool { return b.name == "" && slices.Equal(b.values, g.values) }):
			i := slices.IndexFunc(base, func(b flag) bool { return b.name != "" })
			if i < 0 {
				i = len(base)
			}
			base = slices.Insert(base, i, g)
		}
	}
	return base.toArgs()
}

// Without returns args without the flags and positional arguments that made has with the same values.
func (p *Preset) Without(args, made []string) []string {
	have := p.parse(made)
	list := slices.DeleteFunc(p.parse(args), func(f flag) bool {
		return slices.ContainsFunc(have, func(g flag) bool { return g.name == f.name && slices.Equal(g.values, f.values) })
	})
	return list.toArgs()
}
