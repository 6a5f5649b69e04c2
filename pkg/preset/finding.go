package preset

import (
	"cmp"
	"slices"
)

// Severity is the severity of a finding.
type Severity string

const (
	// Error means that the input certainly fails, and nothing is generated.
	Error Severity = "error"
	// Warning means that the input may fail, by an estimate or because a case was not checked.
	Warning Severity = "warning"
	// Note means that the input works. The finding only informs people.
	Note Severity = "note"
)

// Finding is an error, a warning or a note about an Input.
type Finding struct {
	Severity Severity `json:"severity"`
	// Code is stable, for programs: "ParallelMismatch".
	Code string `json:"code"`
	// Field is a field of the app file's serve block, without the block's name: "parallel.tensor". Fields of
	// the app file itself begin with a slash: "/resources.gpu".
	Field string `json:"field"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// HasErrors reports whether one of the findings is an error.
func HasErrors(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Error })
}

var severities = []Severity{Error, Warning, Note}

// SortFindings puts errors first, then warnings, then notes.
func SortFindings(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
}
