package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError adds the usage of the command to an error.
func usageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%s: %w; the usage is `%s` (see --help)", cmd.CommandPath(), err, cmd.UseLine())
}

// explainArgs adds the usage to the error about a wrong number of arguments, in every command.
func explainArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			switch {
			case err == nil:
				return nil
			// Cobra reports an argument of a command that takes none as an unknown command.
			case strings.HasPrefix(err.Error(), "unknown command"):
				return usageError(cmd, fmt.Errorf("takes no argument, found %q", args[0]))
			}
			return usageError(cmd, err)
		}
	}
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
}

// flagError explains unknown flags, and invalid values of flags.
func flagError(cmd *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		if near := nearFlag(cmd.Flags(), unknown.GetSpecifiedName()); near != "" {
			return usageError(cmd, fmt.Errorf("there is no --%s: did you mean --%s?", unknown.GetSpecifiedName(), near))
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

// nearFlag returns the first flag that begins with the name, or that the name begins with.
func nearFlag(flags *pflag.FlagSet, name string) (near string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if near == "" && len(name) > 1 && (strings.HasPrefix(f.Name, name) || strings.HasPrefix(name, f.Name)) {
			near = f.Name
		}
	})
	return near
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
