package proxy

import (
	"errors"
	"strconv"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/pairing"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// legEnd is the result of a leg.
type legEnd struct {
	leg    decide.Leg
	status int
	err    error
	took   time.Duration
}

// countLeg counts a leg that ended, or whose answer began.
func (m *metrics) countLeg(x *exchange, lease *upstream.Lease, end legEnd) {
	result := "canceled"
	if end.status != 0 {
		result = strconv.Itoa(end.status)
	} else if own, ok := errors.AsType[*failure](end.err); ok {
		result = own.code
	}
	m.figuresOf(series{appLabels{x.spec.AppID, x.spec.AppName}, lease.DeploymentID, lease.Version}) // so that a sweep finds the deployment
	version := strconv.Itoa(int(lease.Version))
	m.legs.WithLabelValues(end.leg.String(), result, x.spec.AppID, x.spec.AppName, lease.DeploymentID, version).Inc()
	if end.status != 0 {
		m.legSeconds.WithLabelValues(end.leg.String(), x.spec.AppID, x.spec.AppName, lease.DeploymentID, version).Observe(end.took.Seconds())
	}
}

func (m *metrics) countLegRetry(x *exchange, leg decide.Leg) {
	a := m.labelsOf(x)
	m.legRetries.WithLabelValues(leg.String(), a.id, a.name).Inc()
}

func (m *metrics) countUnpaired(x *exchange, why pairing.Reason) {
	a := m.labelsOf(x)
	m.unpaired.WithLabelValues(string(why), a.id, a.name).Inc()
}
