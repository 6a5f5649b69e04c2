package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError adds the usage of the command to an error.
func usageError(cmd *cobra.Command, err error) error {
	usage := fmt.Sprintf("the usage is `%s` (see --help)", cmd.UseLine())
	if strings.HasSuffix(err.Error(), "?") {
		return fmt.Errorf("%s: %w T%s", cmd.CommandPath(), err, usage[1:])
	}
	return fmt.Errorf("%s: %w; %s", cmd.CommandPath(), err, usage)
}

// helpCommand replaces Cobra's, which shows the help of windlass for a command that does not exist.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Show the help of a command",
		Args:  cobra.ArbitraryArgs,
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			found, rest, err := c.Root().Find(args)
			if err == nil && len(rest) == 0 {
				for _, sub := range found.Commands() {
					if strings.HasPrefix(sub.Name(), typed) && (sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand()) {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 && found.HasAvailableSubCommands() {
				return unknownCommand(found, rest[0])
			}
			found.InitDefaultHelpFlag() // so that the help lists it
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}

// explainArgs makes the error about a wrong number of arguments name them and show the usage, in every command.
func explainArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return argsError(cmd, args, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
}

// argsError explains the error of a command's check of its arguments.
func argsError(cmd *cobra.Command, args []string, err error) error {
	required, most := namedArgs(cmd.Use)
	switch {
	case len(args) < len(required) && len(required)-len(args) == 1:
		return usageError(cmd, fmt.Errorf("the argument %s is missing", required[len(args)]))
	case len(args) < len(required):
		return usageError(cmd, fmt.Errorf("the arguments %s are missing", listText(required[len(args):], "and")))
	case most == 0 && len(args) > 0 && cmd.HasAvailableSubCommands():
		return unknownCommand(cmd, args[0])
	case most == 0 && len(args) > 0:
		return usageError(cmd, fmt.Errorf("takes no argument, found %q", args[0]))
	case most == 1 && len(args) > most:
		return usageError(cmd, fmt.Errorf("takes one argument, found also %q", args[most]))
	case most > 0 && len(args) > most:
		return usageError(cmd, fmt.Errorf("takes %d arguments, found also %q", most, args[most]))
	}
	return usageError(cmd, err)
}

// alternatives are the parts of a usage line in parentheses. They hold flags only.
var alternatives = regexp.MustCompile(`\([^)]*\)`)

// namedArgs returns the names of the arguments that a usage line requires, and how many arguments it takes. The
// number is -1 if an argument can be repeated.
func namedArgs(use string) (required []string, most int) {
	words := strings.Fields(alternatives.ReplaceAllString(use, ""))
	for i := 1; i < len(words); i++ {
		word := words[i]
		if strings.HasPrefix(word, "-") {
			i++ // the value of the flag
			continue
		}
		isOptional := strings.HasPrefix(word, "[") && strings.HasSuffix(word, "]")
		if !isOptional {
			required = append(required, word)
		}
		if strings.HasSuffix(strings.Trim(word, "[]"), "...") {
			return required, -1
		}
		most++
	}
	return required, most
}

// checkFlags checks the flags that a command requires, alone or in groups. Cobra's errors are lists in brackets.
func checkFlags(cmd *cobra.Command) error {
	if err := cmd.ValidateRequiredFlags(); err != nil {
		var missing []string
		for _, m := range quotedName.FindAllStringSubmatch(err.Error(), -1) {
			missing = append(missing, flagInUsage(cmd, m[1]))
		}
		if len(missing) == 0 {
			return err
		}
		return errors.New("give " + listText(missing, "and"))
	}
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	m := groupPattern.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	var group, found []string
	for name := range strings.FieldsSeq(m[1]) {
		group = append(group, flagInUsage(cmd, name))
	}
	for name := range strings.FieldsSeq(m[2]) {
		found = append(found, "--"+name)
	}
	switch {
	case strings.HasPrefix(err.Error(), "at least one"):
		return errors.New("give " + listText(group, "or"))
	case strings.Contains(err.Error(), "none of the others"):
		return fmt.Errorf("%s cannot be given together: give one of them", listText(found, "and"))
	}
	return fmt.Errorf("%s are given together or not at all: give %s, too", listText(group, "and"), listText(found, "and"))
}

var (
	quotedName = regexp.MustCompile(`"([^"]+)"`)
	// groupPattern matches Cobra's errors about groups of flags: the group, and the flags that are set or missing.
	groupPattern = regexp.MustCompile(`the group \[([^\]]+)\](?:[^\[]*\[([^\]]+)\])?`)
)

// flagInUsage writes a flag with its value as the usage line does, such as --replicas N.
func flagInUsage(cmd *cobra.Command, name string) string {
	forms := "--" + name
	if f := cmd.Flags().Lookup(name); f != nil && f.Shorthand != "" {
		forms += "|-" + f.Shorthand
	}
	if m := regexp.MustCompile(`(?:^|[ (\[])(?:` + forms + `) ([^-\s|()\[\]][^\s()\[\]]*)`).FindStringSubmatch(cmd.Use); m != nil {
		return "--" + name + " " + m[1]
	}
	return "--" + name
}

// flagError explains unknown flags, and invalid values of flags.
func flagError(cmd *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		dashes, typed := "--", unknown.GetSpecifiedName()
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			dashes = "-"
			typed, _, _ = strings.Cut(letters, "=")
		}
		if near := nearFlag(cmd.Flags(), typed); near != "" {
			return usageError(cmd, fmt.Errorf("there is no %s%s: did you mean --%s?", dashes, typed, near))
		}
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if repeated, ok := errors.AsType[repeatedError](err); ok {
			return usageError(cmd, fmt.Errorf("--%s=%q: %w", invalid.GetFlag().Name, invalid.GetValue(), repeated))
		}
		if form := valueForm(invalid.GetFlag().Value.Type(), err); form != "" {
			return usageError(cmd, fmt.Errorf("--%s=%q: use %s", invalid.GetFlag().Name, invalid.GetValue(), form))
		}
	}
	return usageError(cmd, err)
}

// valueForm describes the values that flags of the type take. It returns "" if the error already does.
func valueForm(kind string, err error) string {
	switch kind {
	case "duration":
		return "a number with a unit, such as 30s, 10m or 1h30m; a day is 24h"
	case "bool":
		return "true or false"
	}
	if _, ok := errors.AsType[*strconv.NumError](err); ok {
		return fmt.Sprintf("a number (%s)", kind)
	}
	return ""
}

// refuseRepeats makes the flags of a command and of its subcommands refuse a second value, if they take one value.
// Otherwise the first value would be dropped silently.
func refuseRepeats(c *cobra.Command) {
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "string", "int", "int32", "int64", "uint", "uint32", "uint64", "float64", "duration":
		default: // lists, mappings and switches
			return
		}
		f.Value = &onceValue{Value: f.Value}
		if f.DefValue == "0s" {
			f.DefValue = "0" // pflag knows the default of a duration only by the type of its value
		}
	})
	for _, sub := range c.Commands() {
		refuseRepeats(sub)
	}
}

// repeatedError is the error of a flag with a second value. It holds the first value.
type repeatedError string

func (e repeatedError) Error() string {
	return fmt.Sprintf("the flag already has the value %s: give one value, and call again for another", string(e))
}

// onceValue is the value of a flag that may be given once.
type onceValue struct {
	pflag.Value
	given bool
}

func (v *onceValue) Set(text string) error {
	if v.given {
		return repeatedError(v.String())
	}
	v.given = true
	return v.Value.Set(text)
}
