package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// whyWidth is the width of text below a table. Most terminals are wider than 80 columns, and lines of more
// than 100 are hard to read.
const whyWidth = 100

// maxWhys bounds the number of texts below a table. -o json prints all of them.
const maxWhys = 20

// cutTexts are texts that a table had to cut, each with the subjects that have it. Equal texts are printed once,
// because many instances often have the same reason.
type cutTexts struct {
	order []string
	about map[string][]string
}

// add records the text, unless the table shows all of it.
func (x *cutTexts) add(about, reason, message string) {
	full := reasonText(reason, message)
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

// print writes each text in full, after the name of its subject.
func (x *cutTexts) print(w io.Writer) {
	for i, full := range x.order {
		fmt.Fprintln(w) //nolint:errcheck // the writer's Flush returns the error
		if i == maxWhys {
			fmt.Fprintf(w, "... and %d more: -o json shows all\n", len(x.order)-i) //nolint:errcheck // the writer's Flush returns the error
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
		fmt.Fprintln(w, strings.TrimSuffix(head+": "+oneLine(reason), ": ")) //nolint:errcheck // the writer's Flush returns the error
		for _, line := range whyLines(message) {
			fmt.Fprintln(w, line) //nolint:errcheck // the writer's Flush returns the error
		}
	}
}

// inFull returns a reason and its message: on one line if they are short, else wrapped.
func inFull(reason, message string) string {
	full := reasonText(reason, message)
	if firstLine(full) == full {
		return oneLine(full)
	}
	return strings.TrimPrefix(reason+"\n", "\n") + strings.Join(whyLines(message), "\n")
}

// lastOutput stands between a program's exit and its last output in messages of runtimes.
const lastOutput = "; last output: "

// whyLines formats a message: its sentences wrapped, and each line of a program's last output on a line of
// its own.
func whyLines(message string) []string {
	text, output, said := strings.Cut(message, lastOutput)
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, wrapText(oneLine(line), "  ", whyWidth)...)
	}
	if said {
		out = append(out, "  last output:")
		for line := range strings.SplitSeq(output, " | ") {
			out = append(out, "    "+oneLine(line))
		}
	}
	return out
}

// wrapText breaks text into indented lines of at most width columns. A longer word gets a line of its own.
func wrapText(s, indent string, width int) []string {
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
