package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Domain is a host that a user owns. The app holds it, or waits for it.
type Domain struct {
	Name, WorkspaceID, AppID string
	// Token is the value of the TXT record that verifies the domain.
	Token      string
	CreatedBy  string
	CreatedAt  int64
	VerifiedAt int64 // 0: not verified, and not served
	// CheckedAt is when the record of a verified domain was last checked. MissingSince is when the DNS began to
	// answer that there is no record, 0 while there is one. LapsedAt is when the record had been missing for
	// DomainPatience, 0 before that.
	CheckedAt, MissingSince, LapsedAt int64
}

// DomainPatience is how long the record of a domain may be missing. After that the domain still serves, but
// another workspace may take it once its own record is found. So a name that was sold does not stay with the
// workspace that had it, because only the owner of the DNS zone can set that record. A week covers a move to
// another DNS provider, and the days until a person reads mail.
const DomainPatience = 7 * 24 * time.Hour

// ShownBy reports whether one of the TXT records verifies the domain.
func (d Domain) ShownBy(texts []string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.TrimSpace(s) == d.Token })
}

// DomainFinding is the result of a look-up of a domain's record.
type DomainFinding int

const (
	// DomainUnanswered means that the DNS gave no answer. It changes nothing.
	DomainUnanswered DomainFinding = iota
	DomainFound
	// DomainMissing means that there is no record, or that none has the domain's token.
	DomainMissing
)

// Finding returns what the DNS's answer, or the error instead of one, means for the domain. An answer without
// records is an answer.
func (d Domain) Finding(texts []string, err error) DomainFinding {
	switch {
	case err != nil:
		return DomainUnanswered
	case d.ShownBy(texts):
		return DomainFound
	}
	return DomainMissing
}

// Checked returns the domain after a check of its record at that time, and the history entry, which is empty
// if nothing changed.
func (d Domain) Checked(finding DomainFinding, at int64) (next Domain, what, why string) {
	next = d
	next.CheckedAt = at
	switch finding {
	case DomainUnanswered:
	case DomainFound:
		if next.MissingSince, next.LapsedAt = 0, 0; d.MissingSince != 0 {
			what, why = "DomainRecordFound", d.Name+" has its TXT record again"
		}
	case DomainMissing:
		switch {
		case d.MissingSince == 0:
			next.MissingSince = at
			what = "DomainRecordMissing"
			why = fmt.Sprintf("the DNS has no TXT record %s with the value of %s any more; the domain still serves, and lapses in %d days",
				DomainRecord(d.Name), d.Name, int(DomainPatience.Hours()/24))
		case d.LapsedAt == 0 && at-d.MissingSince >= DomainPatience.Milliseconds():
			next.LapsedAt = at
			what = "DomainLapsed"
			why = fmt.Sprintf("the DNS had no TXT record of %s for %d days; the domain still serves until another app is verified for it",
				d.Name, int(DomainPatience.Hours()/24))
		}
	}
	return next, what, why
}

// DomainChecks are names of domains by the result of their check.
type DomainChecks struct {
	Found, Missing, Unanswered []string
	// Lapsed has the domains of Missing that lapsed with this check.
	Lapsed []string
}

// MaxDomains is how many domains an app may have.
const MaxDomains = 50

// DomainRecord is the name of the TXT record that verifies a domain.
func DomainRecord(name string) string { return "_windlass." + name }

var domainLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ParseDomain returns the domain's name as it is stored and compared: in lower case, without the dot at its end. Users
// see the error.
func ParseDomain(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	labels := strings.Split(name, ".")
	switch {
	case strings.Contains(name, "://") || strings.ContainsAny(name, "/:"):
		return "", fmt.Errorf("%q is an address: a domain is a name alone, such as chat.example.com", text)
	case strings.HasPrefix(name, "*."):
		return "", fmt.Errorf("%q is a wildcard: add each name that the app should serve", text)
	case len(labels) < 2:
		return "", fmt.Errorf("%q has no dot: a domain is a whole name, such as chat.example.com", text)
	case len(name) > 253-len(DomainRecord("")):
		return "", fmt.Errorf("%q is longer than %d characters", text, 253-len(DomainRecord("")))
	case strings.Trim(labels[len(labels)-1], "0123456789") == "":
		return "", fmt.Errorf("%q is not a domain: its last part is a number", text)
	}
	for _, label := range labels {
		if !domainLabel.MatchString(label) {
			return "", fmt.Errorf(`%q is not a domain: %q must be 1 to 63 letters, digits and inner dashes (write other scripts in the form that begins with "xn--")`, text, label)
		}
	}
	return name, nil
}
