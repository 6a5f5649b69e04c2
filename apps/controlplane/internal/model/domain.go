package model

import (
	"fmt"
	"regexp"
	"strings"
)

// Domain is a host of the user's own that an app has, or waits for.
type Domain struct {
	Name, WorkspaceID, AppID string
	// Token is what the TXT record says that verifies it.
	Token      string
	CreatedBy  string
	CreatedAt  int64
	VerifiedAt int64 // 0: it was not, and serves nothing
}

// MaxDomains that an app may have.
const MaxDomains = 50

// DomainRecord is the name of the TXT record that verifies a domain.
func DomainRecord(name string) string { return "_windlass." + name }

var domainLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// ParseDomain returns the domain's name as it is stored and compared: lower case, without
// the dot at its end. The error is for people.
func ParseDomain(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	labels := strings.Split(name, ".")
	switch {
	case strings.Contains(name, "://") || strings.ContainsAny(name, "/:"):
		return "", fmt.Errorf("%q is an address: a domain is a name alone, such as chat.example.com", text)
	case strings.HasPrefix(name, "*."):
		return "", fmt.Errorf("%q is a wildcard: add each name that is to be served", text)
	case len(labels) < 2:
		return "", fmt.Errorf("%q has no dot: a domain is a whole name, such as chat.example.com", text)
	case len(name) > 253-len(DomainRecord("")):
		return "", fmt.Errorf("%q is longer than %d characters", text, 253-len(DomainRecord("")))
	case strings.Trim(labels[len(labels)-1], "0123456789") == "":
		return "", fmt.Errorf("%q is no name: its last part is a number", text)
	}
	for _, label := range labels {
		if !domainLabel.MatchString(label) {
			return "", fmt.Errorf(`%q is no domain: %q is not of 1 to 63 letters, digits and inner dashes (names of other scripts have a form that begins with "xn--")`, text, label)
		}
	}
	return name, nil
}
