package gateways

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/rpc"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// Caller is a gateway as the listener knows it.
type Caller struct {
	// Name in its certificate; empty: it has none.
	Name string
	// Verified: it has proved that it is one of the region's gateways. The region sends its
	// routes to one that has not, where the operator allows that, but does not judge a
	// rollout by what it says: no route waits for it, and its counts of requests are not used.
	// Only instances that leave wait for its requests, for Patience at most.
	Verified bool
}

type callerKey struct{}

func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// Socket is the caller of gateway.sock, which file permissions protect.
func Socket(*http.Request) Caller { return Caller{Verified: true} }

// Certified is the caller of a listener that verifies certificates.
func Certified(r *http.Request) Caller {
	return Caller{Name: certfile.Holder(r.TLS), Verified: r.TLS != nil}
}

// Unverified is the caller of a listener without authentication.
func Unverified(*http.Request) Caller { return Caller{Name: "unverified"} }

// separator is between the id of a gateway and the name in its certificate.
const separator = "@"

// identify adds the caller's name to the id, so that no gateway can have the id of one with
// another name in its certificate.
func (c Caller) identify(gatewayID *string) error {
	if c.Name == "" {
		return nil
	}
	if strings.Contains(*gatewayID, separator) {
		return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "gateway_id",
			"a gateway_id has no "+separator+": the agent adds the name in the gateway's certificate after one")
	}
	*gatewayID += separator + c.Name
	return nil
}
