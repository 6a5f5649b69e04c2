package notification

import (
	"strings"

	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
)

// mergeAbove is the maximum number of waiting notifications of one kind and endpoint that are sent one by one.
const mergeAbove = 20

// Call is a delivery to try, and the ids of the deliveries that were merged into it.
type Call struct {
	Delivery model.Delivery
	Merged   []string
}

// Merge makes calls from due deliveries, in their order. If an endpoint has more than mergeAbove deliveries of one
// kind and region that were never tried, they become one call. Its body has the number of events and of apps. A
// delivery that was tried is not merged, because the receiver may have it.
func Merge(due []model.Delivery) (calls []Call) {
	type group struct {
		endpointID, regionID string
		kind                 model.NotificationKind
	}
	of := func(d model.Delivery) group { return group{d.EndpointID, d.RegionID, d.Kind} }
	fresh := map[group][]model.Delivery{}
	for _, d := range due {
		if d.Attempts == 0 && d.Kind != model.NotifyTest {
			fresh[of(d)] = append(fresh[of(d)], d)
		}
	}
	for _, d := range due {
		many := fresh[of(d)]
		if d.Attempts != 0 || len(many) <= mergeAbove {
			calls = append(calls, Call{Delivery: d})
			continue
		}
		if many[0].MessageID != d.MessageID {
			continue
		}
		calls = append(calls, mergeDeliveries(many))
	}
	return calls
}

// mergeDeliveries returns a call with the first delivery, which gets the events and apps of all deliveries.
func mergeDeliveries(many []model.Delivery) Call {
	c := Call{Delivery: many[0]}
	var names []string
	c.Delivery.Events = 0
	for i, d := range many {
		c.Delivery.Events += d.Events
		names = append(names, strings.Fields(d.AppNames)...)
		if i > 0 {
			c.Merged = append(c.Merged, d.MessageID)
		}
	}
	c.Delivery.Apps, c.Delivery.AppNames = model.NamedApps(names)
	return c
}
