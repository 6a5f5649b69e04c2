package appspec

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/windlass-run/windlass/apps/controlplane/internal/apierr"
	"github.com/windlass-run/windlass/apps/controlplane/internal/model"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// The default names of the roles of a pair.
const (
	defaultPrefill = "prefill"
	defaultDecode  = "decode"
)

// bootstrapPort is the name of the port at which decode servers of SGLang meet a prefill server.
const bootstrapPort = "bootstrap"

// fillPairing removes default values of a pairing, so that the spec has the same hash as a spec without them.
func fillPairing(s *windlassv1.DeploymentSpec) {
	p := s.GetPairing()
	if p == nil {
		return
	}
	none := p.Engine == windlassv1.Pairing_ENGINE_NONE
	if p.Key == windlassv1.Pairing_KEY_VERSION {
		p.Key = windlassv1.Pairing_KEY_UNSPECIFIED
	}
	if p.Prefill == defaultPrefill {
		p.Prefill = ""
	}
	if p.Decode == defaultDecode {
		p.Decode = ""
	}
	if none && proto.Equal(p, &windlassv1.Pairing{Engine: windlassv1.Pairing_ENGINE_NONE}) {
		s.Pairing = nil
	}
}

// checkPairing validates how gateways pair the instances of two roles.
func checkPairing(s *windlassv1.DeploymentSpec, field string) error {
	p := s.GetPairing()
	if p == nil {
		return nil
	}
	names := roleNames(s.GetRoles())
	switch {
	case p.GetEngine() == windlassv1.Pairing_ENGINE_UNSPECIFIED:
		return apierr.InvalidFix(field+".engine", "the engine is missing", "Set engine to nixl (vLLM), sglang or none.")
	case p.GetMinPromptBytes() > 0 && p.GetEngine() != windlassv1.Pairing_ENGINE_NIXL:
		return apierr.InvalidFix(field+".minPromptBytes", fmt.Sprintf("with engine %s no request goes to a decode server alone", model.PairingEngine(s)),
			"Leave minPromptBytes out, or use engine nixl.")
	case p.GetEngine() == windlassv1.Pairing_ENGINE_NONE:
		return apierr.InvalidFix(field+".engine", "engine none pairs no instances, so other fields have no effect", "Leave the other fields out, or use engine nixl or sglang.")
	case len(names) < 2:
		return apierr.InvalidFix(field, "pairs are of instances of two roles, but the app has one role", "Name the roles prefill and decode, or leave pairing out.")
	}
	prefill, decode := model.PairedRoles(s)
	for _, r := range []struct{ field, name string }{{"prefill", prefill}, {"decode", decode}} {
		if !slices.Contains(names, r.name) {
			return apierr.InvalidFix(field+"."+r.field, fmt.Sprintf("the app has no role %q", r.name), fmt.Sprintf("Set it to the role that does the %s. The app's roles are %s.", r.field, strings.Join(names, ", ")))
		}
	}
	if prefill == decode {
		return apierr.InvalidFix(field+".decode", fmt.Sprintf("role %q is both roles of the pair", decode), "Name two roles.")
	}
	for i, r := range s.GetRoles() {
		if r.GetEntry() && r.GetName() != decode {
			return apierr.InvalidFix(strings.TrimSuffix(field, ".pairing")+fmt.Sprintf(".roles[%d].entry", i), fmt.Sprintf("role %q is the entry, but role %q answers requests", r.GetName(), decode),
				fmt.Sprintf("Set entry of role %s instead.", decode))
		}
	}
	if p.GetEngine() == windlassv1.Pairing_ENGINE_SGLANG {
		at := slices.IndexFunc(s.GetPorts(), func(p *windlassv1.Port) bool { return p.GetName() == bootstrapPort })
		switch {
		case at < 0:
			return apierr.InvalidFix(strings.TrimSuffix(field, ".pairing")+".ports", "engine sglang needs the port at which decode servers meet prefill servers",
				"Add {name: bootstrap, port: 0} after the port for requests, and --disaggregation-bootstrap-port=$(PORT_BOOTSTRAP) to the args of prefill servers.")
		case at == 0:
			return apierr.InvalidFix(strings.TrimSuffix(field, ".pairing")+".ports[0]", "requests go to the first port, which must not be the port named bootstrap", "Put the port for requests first.")
		}
	}
	return nil
}
