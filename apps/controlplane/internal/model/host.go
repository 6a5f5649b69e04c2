package model

import (
	"strconv"
	"strings"
)

// maxLabel is how long a DNS label may be, idDigits what of an app's id is in its hosts.
const (
	maxLabel = 63
	idDigits = 12
)

// Host is the name under which an app is served. Names of apps are unique within
// an environment only, so the end of the id, which is random, goes with it: no
// workspace can take another's host by choosing a name.
func Host(app App, domain string) string { return hostOf("", app.ID, app.Name, domain) }

// PreviewHost is the name under which one version of an app is served, whatever its weight.
// All that is before the end of the id is the app's own, so that none is another app's.
func PreviewHost(appID, appName string, version int32, domain string) string {
	return hostOf("v"+strconv.Itoa(int(version))+"-", appID, appName, domain)
}

// hostOf cuts the name so that the label has room for the rest.
func hostOf(prefix, appID, name, domain string) string {
	id := appID[max(0, len(appID)-idDigits):]
	if room := maxLabel - len(prefix) - len("-") - idDigits; len(name) > room {
		name = strings.TrimRight(name[:room], "-")
	}
	return prefix + name + "-" + id + "." + domain
}
