package load

import (
	"maps"
	"net"
	"strconv"

	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// source is a metrics page that each instance of a deployment serves.
type source struct {
	// port is the port of the page. 0: the port of the instance's address.
	port int
	path string
	// metrics has the name of a metric for each signal.
	metrics map[string]string
}

// sourcesOf returns the pages with these signals, as the spec's preset says. It leaves out a page
// on a port whose number only the instance knows.
func sourcesOf(spec *windlassv1.DeploymentSpec, signals map[string]bool) []source {
	type page struct{ port, path string }
	pages := map[page]map[string]string{}
	for _, m := range spec.GetGenerated().GetMetrics() {
		if !signals[m.Signal] {
			continue
		}
		p := page{m.Port, m.Path}
		if pages[p] == nil {
			pages[p] = map[string]string{}
		}
		pages[p][m.Signal] = m.Metric
	}
	var out []source
	for p, metrics := range maps.All(pages) {
		if port, ok := portOf(spec, p.port); ok {
			out = append(out, source{port: port, path: p.path, metrics: metrics})
		}
	}
	return out
}

// portOf returns the number of a named port of the spec, or 0 for the first port, which an instance's address
// contains. ok is false if the number is not known.
func portOf(spec *windlassv1.DeploymentSpec, name string) (number int, ok bool) {
	if len(spec.Ports) == 0 || spec.Ports[0].Name == name {
		return 0, true
	}
	for _, p := range spec.Ports {
		if p.Name == name {
			return int(p.Port), p.Port > 0
		}
	}
	return 0, false
}

// addressOf returns the address of an instance. If port is not 0, it replaces the address's port.
// ok is false while the instance has no address.
func addressOf(address string, port int) (_ string, ok bool) {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "", false
	}
	if port == 0 {
		return address, true
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), true
}
