package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"

	"github.com/rivo/uniseg"
	"golang.org/x/term"
)

// screen is where people read. What it is given comes from files, from programs and from
// other users, and none of that may move a terminal's cursor, set its title or turn text
// around. Only control sends what does.
type screen struct {
	to io.Writer
	// terminal: a person sees it at once.
	terminal bool
}

func newScreen(to io.Writer, isTerminal func(io.Writer) bool) *screen {
	if s, ok := to.(*screen); ok {
		return s
	}
	return &screen{to: to, terminal: isTerminal(to)}
}

// isTerminal reports whether a terminal is what is written to.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Write sends whole lines, or at least whole characters.
func (s *screen) Write(p []byte) (int, error) {
	if _, err := io.WriteString(s.to, printable(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// control sends a terminal what moves its cursor.
func (s *screen) control(sequence string) {
	if s.terminal {
		fmt.Fprint(s.to, sequence) //nolint:errcheck // a closed terminal cannot be reported
	}
}

// width is how many columns a terminal has.
func (s *screen) width() int {
	if f, ok := s.to.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// data is where programs read: the bytes as they are, unless a person sees them.
func (s *screen) data() io.Writer {
	if s.terminal {
		return s
	}
	return s.to
}

// colours are sequences that only set how text looks: logs are full of them.
var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// printable is a text that moves no cursor. What would is shown as JSON shows it, so that
// JSON stays the same.
func printable(s string) string {
	if !strings.ContainsFunc(s, unsafeToPrint) {
		return s
	}
	s = colours.ReplaceAllString(strings.ReplaceAll(s, "\r\n", "\n"), "")
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\r':
			// A bar of progress is drawn again.
			b.WriteByte('\n')
		case unsafeToPrint(r) && r != unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			// Bytes that are no text become the character for those.
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unsafeToPrint reports whether the character could be more to a terminal than a character.
func unsafeToPrint(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case unicode.IsControl(r):
		return true
	case r == unicode.ReplacementChar:
		return true // or a byte that is no text: 0x9b starts a sequence on some terminals
	}
	// Overrides, embeddings and isolates: the text is not in the order in which it is seen.
	return r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// oneLine is printable text without anything that would begin a line or a column.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(s))
}

// firstWidth is how many columns of a message a table shows.
const firstWidth = 100

// firstLine is as much of a text as a table or a line of progress has room for.
func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	switch {
	case uniseg.StringWidth(line) > firstWidth:
		return cutWidth(line, firstWidth-3) + "..."
	case more:
		return line + " ..."
	}
	return line
}

// cutWidth returns the beginning of a text that takes at most width columns, in whole
// characters as people see them.
func cutWidth(s string, width int) string {
	end, state := 0, -1
	for rest := s; rest != ""; {
		var cluster string
		var columns int
		cluster, rest, columns, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if width -= columns; width < 0 {
			break
		}
		end += len(cluster)
	}
	return s[:end]
}
