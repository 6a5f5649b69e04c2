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

// Caller identifies the gateway that sent a call.
type Caller struct {
	// Name is the name in the gateway's certificate. Empty: the gateway has no certificate.
	Name string
	// Verified reports whether the gateway has proved that it belongs to the region. If the
	// operator allows it, an unverified gateway receives the routes, too. Its reports have no
	// effect on rollouts: no route waits for it, and its request counts are not used. Only the
	// removal of an instance waits for its requests, for Patience at most.
	Verified bool
}

type callerKey struct{}

func callerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// Socket returns the caller of a request on gateway.sock. File permissions protect the socket.
func Socket(*http.Request) Caller { return Caller{Verified: true} }

// Certified returns the caller of a request on a listener that verifies certificates.
func Certified(r *http.Request) Caller {
	return Caller{Name: certfile.Holder(r.TLS), Verified: r.TLS != nil}
}

// Unverified returns the caller of a request on a listener without authentication.
func Unverified(*http.Request) Caller { return Caller{Name: "unverified"} }

// separator separates the id of a gateway from the name in its certificate.
const separator = "@"

// addName adds the caller's name to the id. So a gateway cannot use the id of a gateway whose
// certificate has another name.
func (c Caller) addName(gatewayID *string) error {
	if c.Name == "" {
		return nil
	}
	if strings.Contains(*gatewayID, separator) {
		return rpc.Error(connect.CodeInvalidArgument, windlassv1.ErrorReason_ERROR_REASON_VALIDATION, "gateway_id",
			"gateway_id must not contain "+separator+": the agent adds this character and the name in the gateway's certificate")
	}
	*gatewayID += separator + c.Name
	return nil
}
