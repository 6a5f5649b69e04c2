package model

import (
	"strconv"
	"strings"
)

// maxLabel is how long a DNS label may be. idDigits is how many digits of an app's id are in its hosts.
const (
	maxLabel = 63
	idDigits = 12
)

// Host returns the name under which an app is served. Names of apps are unique only within an environment, so
// the host also has the end of the id, which is random. So no workspace can take another's host by the choice
// of a name.
func Host(app App, domain string) string { return hostOf("", app.ID, app.Name, domain) }

// PreviewHost returns the name under which one version of an app is served, whatever its weight. It has the
// end of the app's id, so that no two apps share one.
func PreviewHost(appID, appName string, version int32, domain string) string {
	return hostOf("v"+strconv.Itoa(int(version))+"-", appID, appName, domain)
}

// hostOf cuts the app's name so that the label also holds the prefix and the id.
func hostOf(prefix, appID, name, domain string) string {
	id := appID[max(0, len(appID)-idDigits):]
	if room := maxLabel - len(prefix) - len("-") - idDigits; len(name) > room {
		name = strings.TrimRight(name[:room], "-")
	}
	return prefix + name + "-" + id + "." + domain
}
