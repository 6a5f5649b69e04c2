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

// screen is a writer for output that people read. The output contains texts from files, programs and other users,
// which must not move the cursor, set the terminal's title or reverse text. Only control writes such sequences.
type screen struct {
	to io.Writer
	// terminal reports that the output is a terminal.
	terminal bool
}

func newScreen(to io.Writer, isTerminal func(io.Writer) bool) *screen {
	if s, ok := to.(*screen); ok {
		return s
	}
	return &screen{to: to, terminal: isTerminal(to)}
}

// isTerminal reports whether the writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Write expects whole lines, or at least whole characters.
func (s *screen) Write(p []byte) (int, error) {
	if _, err := io.WriteString(s.to, printableText(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeControl writes a control sequence, if the output is a terminal.
func (s *screen) writeControl(sequence string) {
	if s.terminal {
		fmt.Fprint(s.to, sequence) //nolint:errcheck // a closed terminal cannot be reported
	}
}

// columnCount returns the number of columns of the terminal, or 80.
func (s *screen) columnCount() int {
	if f, ok := s.to.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// dataWriter returns a writer for output that programs read. It changes no bytes, unless the output is a terminal.
func (s *screen) dataWriter() io.Writer {
	if s.terminal {
		return s
	}
	return s.to
}

// colours are sequences that only set the appearance of text. Logs often contain them.
var colours = regexp.MustCompile("\x1b\\[[0-9;:]*m")

// printableText returns a text that cannot control a terminal. It writes unsafe characters as JSON escapes, so
// that JSON keeps its meaning.
func printableText(s string) string {
	if !strings.ContainsFunc(s, unsafeToPrint) {
		return s
	}
	s = colours.ReplaceAllString(strings.ReplaceAll(s, "\r\n", "\n"), "")
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\r':
			// Progress bars use \r to redraw themselves.
			b.WriteByte('\n')
		case unsafeToPrint(r) && r != unicode.ReplacementChar:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			// Invalid bytes become the replacement character.
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unsafeToPrint reports whether the character could control a terminal.
func unsafeToPrint(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case unicode.IsControl(r):
		return true
	case r == unicode.ReplacementChar:
		return true // it may stand for a byte such as 0x9b, which starts a control sequence on some terminals
	}
	// Overrides, embeddings and isolates display text in a different order.
	return r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
}

// oneLine returns a printable text without line ends and tabs.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printableText(s))
}

// firstWidth is the maximum width of a message in a table, in columns.
const firstWidth = 100

// firstLine returns the first line of a text, cut to the width that a table or a line of progress can show.
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

// cutWidth returns the beginning of a text that takes at most width columns. It does not cut characters as
// people see them.
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
