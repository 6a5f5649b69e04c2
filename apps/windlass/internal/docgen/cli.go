package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/windlass-run/windlass/apps/agent"
	"github.com/windlass-run/windlass/apps/controlplane"
	"github.com/windlass-run/windlass/apps/gateway"
	"github.com/windlass-run/windlass/apps/modelserver"
	"github.com/windlass-run/windlass/apps/onnxserver"
	"github.com/windlass-run/windlass/apps/windlass/internal/cli"
	"github.com/windlass-run/windlass/apps/windlass/internal/clientconfig"
	"github.com/windlass-run/windlass/apps/windlass/internal/dev"
)

// rootCommand returns the command line of windlass, with programs that do nothing.
func rootCommand() *cobra.Command {
	nothing := func(string) string { return "" }
	unused := func(context.Context, []string) error { return nil }
	root := cli.New(cli.Config{
		Version: "dev", Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: nothing,
		Extra: []*cobra.Command{dev.Command(dev.Config{Getenv: nothing, Programs: dev.Programs{ControlPlane: unused, Agent: unused, Gateway: unused}})},
	})
	root.InitDefaultCompletionCmd()
	return root
}

func commandLine(*source) (string, error) {
	root := rootCommand()
	var out strings.Builder
	out.WriteString(generated + "# The windlass command\n\n" + root.Long + "\n\n## Flags of every command\n\n")
	writeFlags(&out, root.PersistentFlags())
	out.WriteString("\n## Environment of every command\n\nA flag wins over its variable, and a variable over the value of the context.\n\n")
	variables := newTable("variable", "meaning")
	for _, v := range clientconfig.Variables {
		variables.addRow(asCode(v.Name), escapeProse(v.Meaning))
	}
	variables.addRow(asCode("NO_COLOR"), "any value: no colours, and no lines that are written over")
	out.WriteString(variables.String() + "\n## Commands\n\n")
	list := newTable("command", "does")
	visitCommands(root, func(c *cobra.Command) {
		if c.HasSubCommands() && !c.Runnable() {
			return
		}
		list.addRow(fmt.Sprintf("[`%s`](#%s)", c.CommandPath(), headingAnchor(c.CommandPath())), escapeProse(c.Short))
	})
	out.WriteString(list.String())
	visitCommands(root, func(c *cobra.Command) {
		fmt.Fprintf(&out, "\n## %s\n\n", c.CommandPath())
		text := c.Long
		if text == "" {
			text = c.Short
		}
		out.WriteString("```text\n" + strings.TrimRight(text, "\n") + "\n```\n")
		if c.Runnable() {
			fmt.Fprintf(&out, "\nUsage: `%s`\n", c.UseLine())
		}
		if len(c.Aliases) > 0 {
			fmt.Fprintf(&out, "\nAliases: `%s`\n", strings.Join(c.Aliases, "`, `"))
		}
		if c.Example != "" {
			out.WriteString("\n```text\n" + c.Example + "\n```\n")
		}
		if c.NonInheritedFlags().HasAvailableFlags() {
			out.WriteString("\n")
			writeFlags(&out, c.NonInheritedFlags())
		}
	})
	return out.String(), nil
}

// visitCommands calls f for each visible command below c, in alphabetical order.
func visitCommands(c *cobra.Command, f func(*cobra.Command)) {
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Deprecated != "" || sub.Name() == "help" {
			continue
		}
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			f(sub)
			visitCommands(sub, f)
		}
	}
}

func writeFlags(out *strings.Builder, flags *pflag.FlagSet) {
	t := newTable("flag", "default", "meaning")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "`--" + f.Name
		if kind != "" {
			name += " " + kind
		}
		name += "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := f.DefValue
		switch value {
		case "false", "[]", "0", "0s":
			value = ""
		}
		t.addRow(name, asCode(value), escapeProse(usage))
	})
	out.WriteString(t.String())
}

// headingAnchor returns the fragment that GitHub gives a heading.
func headingAnchor(heading string) string {
	var out strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			out.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
			out.WriteRune(r)
		}
	}
	return out.String()
}

func programFlags(*source) (string, error) {
	var out strings.Builder
	out.WriteString(generated + "# Flags and environment of the programs\n\n" +
		"A flag wins over its environment variable. Lists are separated by commas in both. `--help` prints the same text.\n")
	for _, p := range []struct {
		name  string
		model func() (*kong.Application, error)
	}{
		{"controlplane", controlplane.CommandLine},
		{"agent", agent.CommandLine},
		{"gateway", gateway.CommandLine},
		{"modelserver", func() (*kong.Application, error) {
			parser, err := kong.New(&modelserver.Config{}, kong.Name("modelserver"), kong.DefaultEnvars("MODELSERVER"))
			if err != nil {
				return nil, err
			}
			return parser.Model, nil
		}},
		{"onnxserver", func() (*kong.Application, error) {
			parser, err := kong.New(&onnxserver.Config{}, kong.Name("onnxserver"), kong.DefaultEnvars("ONNXSERVER"), kong.Description(onnxserver.About))
			if err != nil {
				return nil, err
			}
			return parser.Model, nil
		}},
	} {
		app, err := p.model()
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(&out, "\n## %s\n", p.name)
		if app.Help != "" {
			fmt.Fprintf(&out, "\n%s\n", escapeProse(app.Help))
		}
		writeNode(&out, p.name, app.Node)
	}
	return out.String(), nil
}

func writeNode(out *strings.Builder, path string, n *kong.Node) {
	t, some := newTable("flag", "environment", "default", "meaning"), false
	for _, f := range n.Flags {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			continue
		}
		some = true
		name := "--" + f.Name
		if f.IsBool() {
			if f.Tag.Negatable != "" {
				name = "--[no-]" + f.Name
			}
		} else {
			name += "=" + strings.Trim(f.FormatPlaceHolder(), `"`)
			if f.HasDefault || f.Enum != "" {
				name = "--" + f.Name + "=" + strings.ToUpper(f.Name)
			}
		}
		value := asCode(f.Default)
		if f.Required {
			value = "required"
		}
		t.addRow(asCode(name), asCode(strings.Join(f.Envs, " ")), value, escapeProse(f.Help))
	}
	if some {
		out.WriteString("\n" + t.String())
	}
	for _, child := range n.Children {
		if child.Hidden {
			continue
		}
		sub := path + " " + child.Name
		fmt.Fprintf(out, "\n### %s\n\n%s\n", sub, escapeProse(child.Help))
		writeNode(out, sub, child)
	}
}
