package gatewayapi

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// whyNotServed returns why the present version of the route is not served, or "" if it is served.
// It is served if the parent's controller accepts it and resolves all its references.
func whyNotServed(route *gwv1.HTTPRoute, parent Parent) (why string) {
	said := false
	for _, p := range route.Status.Parents {
		if !isFor(p.ParentRef, route.Namespace, parent) {
			continue
		}
		said = true
		for _, kind := range []gwv1.RouteConditionType{gwv1.RouteConditionAccepted, gwv1.RouteConditionResolvedRefs} {
			if why := lacksCondition(p.Conditions, string(kind), route.Generation); why != "" {
				return fmt.Sprintf("%s of Gateway %s: %s", p.ControllerName, parent, why)
			}
		}
	}
	if !said {
		return fmt.Sprintf("no controller has reported a status: is there a Gateway %s, and a controller for it?", parent)
	}
	return ""
}

func isFor(ref gwv1.ParentReference, own string, parent Parent) bool {
	namespace, section := own, ""
	if ref.Namespace != nil {
		namespace = string(*ref.Namespace)
	}
	if ref.SectionName != nil {
		section = string(*ref.SectionName)
	}
	return namespace == parent.Namespace && string(ref.Name) == parent.Name && section == parent.Section
}

func lacksCondition(conditions []metav1.Condition, kind string, generation int64) string {
	for _, c := range conditions {
		switch {
		case c.Type != kind:
		case c.ObservedGeneration < generation:
			return fmt.Sprintf("it has processed generation %d, not %d yet", c.ObservedGeneration, generation)
		case c.Status != metav1.ConditionTrue:
			return fmt.Sprintf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
		default:
			return ""
		}
	}
	return "the condition " + kind + " is missing"
}
