package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/health"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/guard"
)

// HandedOverHeader is in requests from another region's gateway. Its value is the reason ("failover", "spillover"
// or "zero") and the name of that region. A request with the header is not handed over again, so that it cannot
// circulate between regions. If a client sends the header itself, only this region answers it.
const HandedOverHeader = "Windlass-Handed-Over"

// RegionHeader is in answers that come from another region. Its value is the name of that region.
const RegionHeader = "Windlass-Region"

const (
	// idleCrossRegion is how long an idle HTTP/2 connection to another region is kept. It is long, because a
	// new connection takes several round trips. The other gateway keeps the connection for longer. When an
	// HTTP/2 connection ends, the gateway knows which requests were not handled, and sends them again.
	idleCrossRegion = 45 * time.Second
	// idlePlain is how long an idle HTTP/1.1 connection to another region is kept. It is short, because the
	// gateway does not know which requests of a closed HTTP/1.1 connection were not handled. A gateway that
	// stops reads from connections without a request for 2 s more, so idlePlain is well below 2 s.
	idlePlain = time.Second
)

// regionTransports has a transport for each other region. The transport connects to the gateways of that region, and
// verifies their certificate for the request's host.
type regionTransports struct {
	tls   *tls.Config // nil: the CAs of this machine
	allow guard.Networks

	mu sync.Mutex
	to map[string]crossing // by URL
}

// crossing has the transports to the gateways of one region.
type crossing struct {
	protocols

	// secure is for TLS. The other side chooses HTTP/1.1 or 2.
	secure *http.Transport
}

func (a *regionTransports) crossingTo(at remoteregions.Region) crossing {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := at.URL.String()
	if c, ok := a.to[key]; ok {
		return c
	}
	address := remoteregions.Address(at.URL)
	there := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dialBy(ctx, remoteregions.Dialer(a.allow, at.URL), network, address)
	}
	c := crossing{protocols: newProtocols(there), secure: newTransport(there)}
	c.secure.Protocols.SetHTTP1(true)
	c.secure.Protocols.SetHTTP2(true)
	c.secure.HTTP2 = keepAlive()
	c.secure.TLSClientConfig = a.tls.Clone()
	c.secure.TLSHandshakeTimeout = upstream.DefaultPolicy().Connect * 2
	c.plain.IdleConnTimeout, c.h2c.IdleConnTimeout, c.secure.IdleConnTimeout = idlePlain, idleCrossRegion, idleCrossRegion
	if a.to == nil {
		a.to = map[string]crossing{}
	}
	a.to[key] = c
	return c
}

// forgetRegion closes the connections to a region to which requests are not handed over any more.
func (a *regionTransports) forgetRegion(gatewayURL string) {
	a.mu.Lock()
	c, ok := a.to[gatewayURL]
	delete(a.to, gatewayURL)
	a.mu.Unlock()
	if ok {
		c.close()
	}
}

func (a *regionTransports) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.to {
		c.close()
	}
}

func (c crossing) close() {
	c.protocols.close()
	c.secure.CloseIdleConnections()
}

// region is another region as a destination.
type region struct{ remoteregions.Region }

func (r region) resolveTarget(t *transport, req *http.Request) (scheme, host string, through *http.Transport) {
	c := t.toRegions.crossingTo(r.Region)
	if r.URL.Scheme == "https" {
		return "https", req.URL.Host, c.secure
	}
	return "http", req.URL.Host, c.transportFor(req)
}

// RecordOutcome does nothing, because the other gateway judges its instances.
func (region) RecordOutcome(health.Outcome) {}

// RecordStall implements destination.
func (region) RecordStall(time.Duration) {}
func (region) End()                      {}

// awaitCrossRegion implements carrier. The answer of another region is in c.res.
func (c *trip) awaitCrossRegion(want *upstream.Want, why *upstream.Refused) (*upstream.Lease, error) {
	if done, err := c.handOver(why.Reason); done {
		return nil, err
	}
	if why.Reason == upstream.Held && why.Full {
		return nil, why // the request has no place in a queue
	}
	lease, done, err := c.awaitEither(want, why.Reason)
	if done || !errors.As(err, &why) {
		return lease, err
	}
	// The request waited without success, but other regions may have become available meanwhile.
	if done, handErr := c.handOver(why.Reason); done {
		return nil, handErr
	}
	return nil, err
}

// errRemoteFree ends the wait in the queue because another region can take the request.
var errRemoteFree = errors.New("another region can take the request")

// awaitEither is awaitInstance, but it also hands the request over as soon as another region can take it. It keeps
// checking, because what the gateway knows of other regions is a few seconds old. done is as in handOver.
func (c *trip) awaitEither(want *upstream.Want, reason upstream.Reason) (lease *upstream.Lease, done bool, err error) {
	x := c.x
	for canResend(x, c.body) && (reason == upstream.NoInstance || reason == upstream.Held || reason == upstream.AtLimit && x.policy.Cross == upstream.Spillover) {
		ctx, cancel := context.WithCancelCause(c.req.Context())
		go func() {
			if c.t.regions.Await(ctx, x.spec.AppID) == nil {
				cancel(errRemoteFree)
			}
		}()
		lease, err := c.acquireWithComments(ctx, want)
		cancel(nil)
		if lease != nil || !errors.Is(err, errRemoteFree) {
			return lease, false, err
		}
		if done, err := c.handOver(reason); done {
			return nil, true, err
		}
		lease, why := x.route.Try(want)
		if lease != nil {
			return lease, false, nil
		}
		reason = why.Reason
	}
	lease, err = c.awaitInstance(want)
	return lease, false, err
}

// Reasons for which a request is handed over.
const (
	failover  = "failover"
	spillover = "spillover"
	fromZero  = "zero"
)

// handOver sends the request to other regions, the nearest first, until one of them answers. done is false if no
// region answers and no region can have handled the request.
func (c *trip) handOver(reason upstream.Reason) (done bool, err error) {
	t, x, req, body := c.t, c.x, c.req, c.body
	why := failover
	switch {
	case reason == upstream.Removed, !canResend(x, body):
		return false, nil // no region was asked
	case reason == upstream.AtLimit && x.policy.Cross != upstream.Spillover:
		return false, nil // the request waits for its turn in this region
	case reason == upstream.AtLimit:
		why = spillover
	case reason == upstream.Held:
		why = fromZero
	}
	for tried := []string(nil); ; {
		at, ok := t.regions.Choose(x.spec.AppID, tried)
		if !ok {
			return false, nil // no region is left, and no region can have got the request
		}
		tried = append(tried, at.Name)
		out := req.Clone(req.Context())
		out.Header.Set(HandedOverHeader, why+" "+t.regions.Here())
		if x.key.field != "" {
			out.Header.Set(x.key.field, x.key.value) // the gateway of that region checks the key, too
		}
		res, attempt, err := t.roundTrip(out, x, region{at}, body)
		if err == nil {
			if isGatewaysOwn(res) {
				t.regions.Refused(at)
				if canResend(x, body) {
					_ = res.Body.Close() // the region did not handle the request
					continue
				}
			} else {
				t.regions.Took(at)
			}
			t.metrics.handedOver(x, at.Name, why)
			x.handedTo, x.instance, x.prefill, x.deployment, x.version, x.payload = at.Name, "", "", "", 0, nil
			x.load.End() // the request counts as load of the other region
			c.res = res
			return true, nil
		}
		x.firstByte = time.Time{}
		if own := failureOf(err); own != nil && own != failExhausted {
			t.regions.Unreachable(at)
		}
		if req.Context().Err() != nil || attempt.Sent && !isIdempotentRequest(req) || !canResend(x, body) {
			return true, fmt.Errorf("hand over to region %s: %w", at.Name, err)
		}
	}
}

// refusals are the codes with which a gateway answers a request that it has not sent to an instance.
var refusals = []string{
	failNoRoute.code, failNoTable.code, failNoInstance.code, failBusy.code, failWaited.code, failHoldFull.code, failHeld.code, failExhausted.code,
	failPairMemory.code,
}

// isGatewaysOwn reports whether the other region's gateway wrote the answer itself. An instance cannot imitate
// such an answer, because the gateway drops ErrorHeader from the answers of its instances.
func isGatewaysOwn(res *http.Response) bool {
	return slices.Contains(refusals, res.Header.Get(ErrorHeader))
}
