package rollout

import (
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// hostNameLength leaves room for a dash and twelve digits in a DNS label.
const hostNameLength = 50

// Host is the name under which an app is served. Names of apps are unique within
// an environment only, so the end of the id, which is random, goes with it: no
// workspace can take another's host by choosing a name.
func Host(app model.App, domain string) string {
	name := app.Name
	if len(name) > hostNameLength {
		name = strings.TrimRight(name[:hostNameLength], "-")
	}
	return name + "-" + app.ID[max(0, len(app.ID)-12):] + "." + domain
}
