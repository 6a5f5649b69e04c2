package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError adds to an error how the command is used.
func usageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%s: %w; it is used as `%s` (try --help)", cmd.CommandPath(), err, cmd.UseLine())
}

// explainArgs makes every command answer a wrong number of arguments with how it is used.
func explainArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			switch {
			case err == nil:
				return nil
			// Cobra takes the argument of a command without any for a command.
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

// flagError explains flags that the command does not have, and values that a flag does not take.
func flagError(cmd *cobra.Command, err error) error {
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
		if near := nearFlag(cmd.Flags(), unknown.GetSpecifiedName()); near != "" {
			return usageError(cmd, fmt.Errorf("there is no --%s: did you mean --%s?", unknown.GetSpecifiedName(), near))
		}
	}
	invalid, number := (*pflag.InvalidValueError)(nil), (*strconv.NumError)(nil)
	if errors.As(err, &invalid) && errors.As(err, &number) {
		return usageError(cmd, fmt.Errorf("--%s=%q: use a number (%s)", invalid.GetFlag().Name, invalid.GetValue(), invalid.GetFlag().Value.Type()))
	}
	return usageError(cmd, err)
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
