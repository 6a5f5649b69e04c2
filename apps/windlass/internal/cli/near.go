package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxTypos is the largest edit distance of a suggestion, as in Cobra's suggestions for commands.
const maxTypos = 2

// closestName returns the name that the user probably meant: one that begins with the typed text or that the typed text
// begins with, or else the one with the smallest edit distance. It returns "" if no name is near.
func closestName(typed string, names []string) string {
	typed = strings.ToLower(typed)
	if len(typed) < 2 {
		return ""
	}
	for _, name := range names {
		if lower := strings.ToLower(name); lower != "" && (strings.HasPrefix(lower, typed) || strings.HasPrefix(typed, lower)) {
			return name
		}
	}
	// In a short text, each letter counts for more.
	best, distance := "", min(maxTypos, len(typed)/2)+1
	for _, name := range names {
		if d := editDistance(typed, strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// nearFlag returns the name of the flag that the user probably meant, or "".
func nearFlag(flags *pflag.FlagSet, typed string) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return closestName(typed, names)
}

// unknownCommand returns the error for a subcommand that does not exist. It names a similar one or, without one, all.
func unknownCommand(cmd *cobra.Command, typed string) error {
	near := ""
	var names, known []string
	for _, sub := range cmd.Commands() {
		switch {
		case sub.IsAvailableCommand():
			names = append(names, sub.Name())
			known = append(append(known, sub.Name()), sub.Aliases...)
		case sub.IsAdditionalHelpTopicCommand():
			known = append(known, sub.Name())
		}
		if slices.Contains(sub.SuggestFor, strings.ToLower(typed)) {
			near = sub.Name()
		}
	}
	if near = cmp.Or(near, closestName(typed, known)); near != "" {
		return fmt.Errorf("%s has no command %q. Did you mean `%s %s`?", cmd.CommandPath(), typed, cmd.CommandPath(), near)
	}
	slices.Sort(names)
	return fmt.Errorf("%s has no command %q: its commands are %s (see --help)", cmd.CommandPath(), typed, listText(names, "and"))
}

// listText joins words to "a, b and c".
func listText(words []string, conjunction string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}
