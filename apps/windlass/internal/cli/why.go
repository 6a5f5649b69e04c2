package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// whyWidth is how wide text below a table is set: a terminal of 80 is rare by now,
// and lines of more than 100 are hard to read.
const whyWidth = 100

// maxWhys bounds the texts below a table; -o json has all of them.
const maxWhys = 20

// whys are texts that a table had to cut, each with whom it is about. Equal texts
// are told once: a scheduler has the same to say of every instance.
type whys struct {
	order []string
	about map[string][]string
}

// add notes the text, unless the table shows all of it.
func (x *whys) add(about, reason, message string) {
	full := because(reason, message)
	if full == "" || firstLine(full) == full {
		return
	}
	if x.about == nil {
		x.about = map[string][]string{}
	}
	if len(x.about[full]) == 0 {
		x.order = append(x.order, full)
	}
	x.about[full] = append(x.about[full], about)
}

// print writes each text in full, below whom it is about.
func (x *whys) print(w io.Writer) {
	for i, full := range x.order {
		fmt.Fprintln(w) //nolint:errcheck // the writer's Flush tells
		if i == maxWhys {
			fmt.Fprintf(w, "... and %d more: -o json shows all\n", len(x.order)-i) //nolint:errcheck // the writer's Flush tells
			return
		}
		about := x.about[full]
		head := about[0]
		if n := len(about) - 1; n > 0 {
			head += fmt.Sprintf(" and %d more", n)
		}
		reason, message, ok := strings.Cut(full, ": ")
		if !ok || strings.ContainsAny(reason, " \n") {
			reason, message = "", full
		}
		fmt.Fprintln(w, strings.TrimSuffix(head+": "+oneLine(reason), ": ")) //nolint:errcheck // the writer's Flush tells
		for _, line := range whyLines(message) {
			fmt.Fprintln(w, line) //nolint:errcheck // the writer's Flush tells
		}
	}
}

// inFull is a reason and its message: on one line if it is short, else laid out.
func inFull(reason, message string) string {
	full := because(reason, message)
	if firstLine(full) == full {
		return oneLine(full)
	}
	return strings.TrimPrefix(reason+"\n", "\n") + strings.Join(whyLines(message), "\n")
}

// lastOutput is how runtimes part what a program said last from how it ended.
const lastOutput = "; last output: "

// whyLines lays a message out: its sentences wrapped, a program's last lines one
// below the other.
func whyLines(message string) []string {
	text, output, said := strings.Cut(message, lastOutput)
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, wrap(oneLine(line), "  ", whyWidth)...)
	}
	if said {
		out = append(out, "  last output:")
		for line := range strings.SplitSeq(output, " | ") {
			out = append(out, "    "+oneLine(line))
		}
	}
	return out
}

// wrap sets words in lines of at most width, each indented. A longer word has a
// line of its own.
func wrap(s, indent string, width int) []string {
	var out []string
	line := indent
	for word := range strings.FieldsSeq(s) {
		if line != indent && uniseg.StringWidth(line)+1+uniseg.StringWidth(word) > width {
			out = append(out, line)
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	if line != indent {
		out = append(out, line)
	}
	return out
}
