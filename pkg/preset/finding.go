package preset

import (
	"cmp"
	"slices"
)

// Severity of a finding.
type Severity string

const (
	// Error: the input certainly fails, and nothing is generated.
	Error Severity = "error"
	// Warning: the input may fail, by an estimate or because a case was not checked.
	Warning Severity = "warning"
	// Note: the input works, and there is something to know.
	Note Severity = "note"
)

// Finding is something to know about an Input.
type Finding struct {
	Severity Severity `json:"severity"`
	// Code is stable, for programs: "ParallelMismatch".
	Code string `json:"code"`
	// Field of the app file's serve block, without its name: "parallel.tensor". Fields of the app file itself
	// begin with a slash: "/resources.gpu".
	Field string `json:"field"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// HasErrors reports whether one of the findings is an error.
func HasErrors(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Error })
}

var severities = []Severity{Error, Warning, Note}

// sortFindings puts errors first, then warnings, then notes.
func sortFindings(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
}
