// Package proxy takes a request through the gateway.
//
//	client ─▶ host ─▶ route ─▶ (queue) ─▶ instance ─▶ answer, as it comes
//	            404     413      429/503     502/504
//
// # Two ways
//
// The long way is for all requests. net/http and its httputil.ReverseProxy move the bytes: HTTP/1 and 2,
// flushing, upgrades, trailers, hop-by-hop headers. This package adds a RoundTripper below ReverseProxy, which
// chooses the instance, retries and applies timeouts. A handler above ReverseProxy applies limits, answers
// errors and counts.
//
// The short way (Handle, direct) is for nearly all requests: plain HTTP/1.1 without TLS, whole in memory, to
// a route that needs only instances. net/http takes several times the processor time for such a request.
// Package engine reads these requests. A request that is not plain goes the long way, with its connection. A
// malformed request goes the long way, too, so that only one place refuses it. So do requests that would need
// the same code twice (CORS, logs of payloads, other regions). Both ways share the exchange (driveToAnswer),
// the decisions of package decide, and the metrics, errors and rules. Tests send the same requests and answers
// both ways.
//
// # Why not Caddy
//
// Caddy's reverse proxy (2.11) was tried as a module instead. It starts only under a configuration that is
// global to the process, and needs its own replacer and server around each request. It counts requests under
// way by address, also in a global table, but the gateway needs the count by instance. It repeats requests
// that could not connect, and GETs. It does not repeat other requests whose connection broke before a byte was
// written. It allocates more for a request than ReverseProxy, from which it was made.
//
// # What is repeated
//
// A request has not reached an instance if there was no connection, or if no byte of the request
// was written. Then it goes to another instance, with any method, if its body can be sent again.
// A request that may have reached an instance is repeated only if its method is idempotent or it
// has an Idempotency-Key. It is repeated at most as often as the route says, and never after the
// first byte of an answer. Bodies of up to Replayable bytes are read before an instance is chosen,
// so that a client that sends slowly does not occupy an instance.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/windlass-run/windlass/apps/gateway/internal/cors"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/hold"
	"github.com/windlass-run/windlass/apps/gateway/internal/pace"
	"github.com/windlass-run/windlass/apps/gateway/internal/payload"
	"github.com/windlass-run/windlass/apps/gateway/internal/remoteregions"
	"github.com/windlass-run/windlass/apps/gateway/internal/table"
	"github.com/windlass-run/windlass/apps/gateway/internal/traffic"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
	"github.com/windlass-run/windlass/pkg/backoff"
	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/guard"
)

// Config configures a Proxy.
type Config struct {
	Table *table.Table
	// Complete reports whether the table is complete. Until then, the route of a host may still come.
	Complete func() bool
	// Log gets a line for each request that the gateway answered with an error of its own or broke off.
	Log *slog.Logger
	// Access gets a line for each request that AccessEvery selects. Nil: there is no access log.
	Access *slog.Logger
	// AccessEvery is n to log one request in n. Requests that failed by an error of the gateway are always
	// logged. 0 counts as 1.
	AccessEvery uint64
	// Trusted are proxies whose X-Forwarded-* fields are passed on. These fields of other clients are dropped.
	Trusted []netip.Prefix
	// HSTS is the max-age of Strict-Transport-Security in answers by HTTPS. 0: they do not have the field.
	HSTS time.Duration
	// Advertise adds the header fields to answers by TLS that tell clients about HTTP/3.
	Advertise func(http.Header)
	// SlowClient is how long a client may neither take nor send a byte.
	SlowClient time.Duration
	// Bodies and Answers are the slowest rates at which clients may send bodies and take answers.
	Bodies, Answers pace.Least
	// UpgradedIdle is how long a connection that switched protocols may be silent.
	UpgradedIdle time.Duration
	// Conns are the connections of clients. Some are closed when descriptors have run out. Nil: none.
	Conns *conns.Table
	// Payloads logs the payloads of routes whose policy enables it. Nil: no payload is logged.
	Payloads *payload.Log
	// Regions are the regions to which requests may be handed over. NeighbourTLS is the TLS configuration for
	// their gateways. Nil: Go's default, with the CAs of this machine. Allow are networks, in addition to public
	// addresses, in which these gateways may be.
	Regions *remoteregions.Regions
	// Holds counts the requests that wait for apps at zero.
	Holds *hold.Holds
	// PairMemory limits the memory for the bodies of requests to pairs, in bytes. At least MinPairMemory.
	// 0: DefaultPairMemory.
	PairMemory   int64
	NeighbourTLS *tls.Config
	Allow        guard.Networks
	// Traffic counts requests, for the decisions about rollouts.
	Traffic    *traffic.Traffic
	Registerer prometheus.Registerer
}

// Proxy is the handler of all requests of the region. Make it with New.
type Proxy struct {
	cfg       Config
	metrics   *metrics
	transport *transport
	reverse   *httputil.ReverseProxy
	pool      *engine.Pool
	answers   engine.Buffers
	counted   atomic.Uint64
	underWay  atomic.Int64
	leaving   atomic.Bool
}

// New returns a Proxy.
func New(cfg Config) (*Proxy, error) {
	if cfg.Table == nil || cfg.Complete == nil || cfg.Advertise == nil || cfg.Log == nil || cfg.Traffic == nil || cfg.Regions == nil || cfg.Holds == nil || cfg.Registerer == nil || cfg.SlowClient <= 0 || cfg.UpgradedIdle <= 0 {
		return nil, errors.New("proxy: Table, Complete, Advertise, Log, Traffic, Regions, Holds, Registerer, SlowClient and UpgradedIdle are required")
	}
	m, err := newMetrics(cfg.Registerer, cfg.Table, cfg.Traffic)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if cfg.PairMemory == 0 {
		cfg.PairMemory = DefaultPairMemory
	}
	if cfg.PairMemory < MinPairMemory {
		return nil, fmt.Errorf("proxy: PairMemory is %d bytes: the least is %d", cfg.PairMemory, MinPairMemory)
	}
	memory, err := newPairMemory(cfg.PairMemory, cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{cfg: cfg, metrics: m, transport: &transport{metrics: m, pairMemory: memory, holds: cfg.Holds, regions: cfg.Regions, toRegions: regionTransports{tls: cfg.NeighbourTLS, allow: cfg.Allow}, upgradedIdle: cfg.UpgradedIdle}}
	p.transport.here = newProtocols(p.dialInstance)
	p.pool, p.answers = &engine.Pool{}, engine.Buffers{Size: answerSize}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewriteRequest,
		Transport:      p.transport,
		BufferPool:     newBuffers(),
		ErrorHandler:   p.answerTransportFailure,
		ModifyResponse: p.takeOwnFields,
		// ErrorHandler gets all errors that ReverseProxy logs.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
	return p, nil
}

// sweepEvery is the time between sweeps of metrics. It is longer than any interval of scrapes.
const sweepEvery = 10 * time.Minute

// Sweep drops the series of deployments that have no routes, and closes idle connections to instances, until
// ctx ends.
func (p *Proxy) Sweep(ctx context.Context) error {
	for swept := time.Now(); ; {
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return err
		}
		now := time.Now()
		p.pool.Sweep(now, engine.IdleConnection)
		if now.Sub(swept) >= sweepEvery {
			swept = now
			p.metrics.sweepSeries(p.cfg.Table)
			p.cfg.Holds.Forget(p.cfg.Table.Has)
			p.cfg.Traffic.ForgetApps(p.cfg.Table.Has)
		}
	}
}

// Leave makes answers on HTTP/1 close their connections, so that clients connect to the process that listens next.
func (p *Proxy) Leave() { p.leaving.Store(true) }

// UnderWay returns how many requests have not ended.
func (p *Proxy) UnderWay() int64 { return p.underWay.Load() }

// Forget closes the connections to the gateways of another region to which requests are not handed over any more.
func (p *Proxy) Forget(gatewayURL string) { p.transport.toRegions.forgetRegion(gatewayURL) }

// Close closes idle connections.
func (p *Proxy) Close() {
	p.transport.close()
	p.pool.Sweep(time.Now(), 0)
}

// exchange is one request and its result.
type exchange struct {
	id    string
	start time.Time
	// arrived is when the gateway had read the part of the request that it reads before it chooses an instance. The
	// limit for the time in a queue begins then.
	arrived time.Time
	// took is how long the request took. It is known once the request was counted.
	took  time.Duration
	host  string
	route *upstream.Route
	// spec and policy are those of the route when the request came. They must not be changed.
	spec    *upstream.Spec
	policy  *upstream.Policy
	control *http.ResponseController
	// out writes the answer. Nil: the request goes the short way.
	out *answer
	// in is the request's body, and answerPace is how fast the client takes the answer.
	in         *requestBody
	answerPace pace.Pace
	// answerMu guards answerPace, failure and cause while an answer is passed on, because ReverseProxy reads
	// and flushes it on different goroutines.
	answerMu sync.Mutex
	// hijacked is the client's side of a connection that switched protocols.
	hijacked atomic.Pointer[net.Conn]
	// header is the header of the answer. cors has the fields that the route's CORS policy adds to it. Nil: no
	// fields. They are set again with an instance's answer, because an interim answer before it drops them.
	header, cors http.Header

	// handedOver is the value of HandedOverHeader, if another region handed the request over. handedTo is the
	// region to which this gateway handed the request over. Empty: no region.
	handedOver, handedTo string
	// held is how long the request waited for an app at zero.
	held time.Duration

	key appKey
	// load counts the request until it ends, if the app has scaling.
	load traffic.Counted

	// The following fields describe the last attempt.
	deployment string
	version    int32
	instance   string
	// prefill is the instance that prefilled the prompt for instance. Empty: no instance did.
	prefill   string
	attempts  int
	firstByte time.Time
	// streams is whether the answer is a stream of events, whose first byte belongs to a token. firstToken is
	// when that byte was passed on.
	streams    bool
	firstToken time.Time
	status     int
	// grpc is whether the client speaks gRPC. grpcCode is the gRPC status that the client got.
	grpc     bool
	grpcCode string
	sent     int64
	tail     tail
	used     usage
	// payload is the entry for the log of payloads. Nil: the request's payload is not logged.
	payload *payload.Entry
	// passed is whether the request was passed from the short way to the long way, which counts it.
	passed bool
	// failure is the error that the gateway answered itself, or why it broke off the answer.
	failure *failure
	cause   error
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// RequestIDHeader has the request's id, which comes from the client or is new. Instances and the client get it.
const RequestIDHeader = "X-Request-Id"

const hstsHeader = "Strict-Transport-Security"

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.underWay.Add(1)
	defer p.underWay.Add(-1)
	x := &exchange{
		start: time.Now(), host: table.Host(r.Host), spec: nowhere, policy: &nowhere.Policy, handedOver: r.Header.Get(HandedOverHeader), answerPace: pace.Of(p.cfg.Answers),
	}
	x.id, x.grpc = requestID(r.Header.Get(RequestIDHeader), x.start), speaksGRPC(r)
	out := &answer{ResponseWriter: w, p: p, r: r, x: x, control: http.NewResponseController(w), slow: p.cfg.SlowClient, streams: r.ProtoMajor > 1}
	x.control, x.out = out.control, out
	defer out.endBeat()
	p.setHeaders(out.Header(), r, x)
	if r.Body != nil && r.Body != http.NoBody {
		x.in = newRequestBody(r, x, p.cfg.SlowClient, p.cfg.Bodies)
		if !x.in.streams {
			x.in.extendDeadline() // also for requests that are answered without reading the body
		}
	}
	ctx := r.Context()
	defer func() {
		if x.in != nil {
			x.in.endWithHandler()
		}
		if x.grpc {
			x.grpcCode = grpcCode(w.Header())
		}
		p.finishExchange(ctx, x, &seen{
			method: r.Method, path: r.URL.Path, remote: r.RemoteAddr, proto: r.Proto, trace: r.Header.Get("Traceparent"),
		}, func(f *payload.Facts) {
			f.RequestType, f.RequestCoded = r.Header.Get("Content-Type"), r.Header.Get("Content-Encoding")
			f.AnswerType, f.AnswerCoded = w.Header().Get("Content-Type"), w.Header().Get("Content-Encoding")
		})
		if e := recover(); e != nil {
			panic(e) // ErrAbortHandler makes the server cut the connection, so that the client sees that the answer is incomplete
		}
	}()
	p.serveHTTP(out, r, x)
}

// nowhere is the spec for a request without a route.
var nowhere = &upstream.Spec{}

// setHeaders sets the fields that the gateway adds to every answer.
func (p *Proxy) setHeaders(h http.Header, r *http.Request, x *exchange) {
	h.Set(RequestIDHeader, x.id)
	if r.TLS != nil {
		if p.cfg.HSTS > 0 {
			h.Set(hstsHeader, "max-age="+strconv.FormatInt(int64(p.cfg.HSTS/time.Second), 10))
		}
		p.cfg.Advertise(h)
	}
	if r.ProtoMajor == 1 && p.leaving.Load() || Doubtful(r) {
		h.Set("Connection", "close")
	}
}

func (p *Proxy) serveHTTP(w http.ResponseWriter, r *http.Request, x *exchange) {
	if what := whyMalformed(r); what != "" {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close") // as net/http does for requests that it refuses
		}
		p.answerFailure(w, x, failMalformed, errors.New(what))
		return
	}
	if unsafeMethod(r.Method) {
		p.answerFailure(w, x, failMethod, nil)
		return
	}
	if r.RequestURI == "*" { // OPTIONS asks about the gateway itself: net/http answers it
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return
	}
	if x.host == "" {
		p.answerFailure(w, x, failBadHost, nil)
		return
	}
	if x.route = p.cfg.Table.Lookup(x.host); x.route == nil {
		if p.cfg.Complete() {
			p.answerFailure(w, x, failNoRoute, nil)
		} else {
			p.answerFailure(w, x, failNoTable, nil)
		}
		return
	}
	spec := x.route.Now()
	if spec == nil {
		p.answerFailure(w, x, failNoRoute, nil)
		return
	}
	x.spec, x.policy = spec, &spec.Policy
	if x.payload = p.cfg.Payloads.Begin(x.policy.Payload); x.payload != nil && x.in != nil {
		x.in.payload = &x.payload.Request
	}
	if x.policy.CORS != nil {
		x.header, x.cors = w.Header(), x.policy.CORS.Headers(r)
		cors.Set(x.header, x.cors)
		if cors.Preflight(r) {
			// An instance may require a log-in, and browsers do not send credentials with a preflight.
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	if x.spec.NeedsKey(x.host) && !x.admitsKey(netFields(r.Header)) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // the body is not read
		}
		p.answerFailure(w, x, failKey, nil)
		return
	}
	if len(x.spec.ClosedPaths) > 0 && isClosed(r.URL.EscapedPath(), x.spec.ClosedPaths) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // the body is not read
		}
		p.answerFailure(w, x, failClosedPath, nil)
		return
	}
	if r.ContentLength > x.policy.MaxBody {
		// The connection cannot be used again because the body is not read.
		w.Header().Set("Connection", "close")
		p.answerFailure(w, x, failBody, nil)
		return
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if x.policy.Total > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, x.policy.Total, failTotal)
		defer cancel()
	}
	r = r.WithContext(ctx)
	if x.in != nil {
		x.in.body = http.MaxBytesReader(w, r.Body, x.policy.MaxBody)
		r.Body = x.in
		if !x.in.streams && !isKept(r) {
			// Otherwise net/http delays the answer until a Read of the client's body ends, but the client may
			// wait for the answer.
			x.in.duplex = x.control.EnableFullDuplex() == nil
		}
	}
	p.countLoad(x)
	p.reverse.ServeHTTP(w, r)
}

// countLoad counts the request as load of its app, if the app has scaling. A request for a preview does not
// count, because it must not keep the app from scaling down.
func (p *Proxy) countLoad(x *exchange) {
	if x.spec.CountsLoad && !x.spec.IsPreview(x.host) {
		x.load = p.cfg.Traffic.Begin(x.spec.AppID)
	}
}

// rewriteRequest makes the request for an instance, without the instance's address.
func (p *Proxy) rewriteRequest(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = x.host
	pr.Out.Host = pr.In.Host
	pr.Out.URL.RawQuery = soundQuery(pr.In.URL.RawQuery) // ReverseProxy drops parameters that it cannot parse
	keepUpgrade(pr.Out.Header)
	if !pr.In.ProtoAtLeast(1, 1) { // RFC 9110, section 7.8
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
	trusted := p.isTrusted(pr.In.RemoteAddr)
	dropFields(pr.Out.Header, trusted)
	pr.Out.Header.Del(x.key.field)
	x.addFields(pr.Out.Header, pr.In, trusted)
}

// takeOwnFields removes from an answer the fields that only the gateway may set.
func (p *Proxy) takeOwnFields(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	dropOwn(res.Header, x.handedTo != "")
	if x.handedTo != "" {
		res.Header.Set(RegionHeader, x.handedTo)
	}
	keepTrailers(res.Trailer)
	if x.cors != nil {
		cors.Replace(x.header, res.Header, x.cors)
	}
	if p.cfg.HSTS > 0 && res.Request.Header.Get("X-Forwarded-Proto") == "https" {
		res.Header.Del(hstsHeader)
	}
	return nil
}

// answerTransportFailure answers with a failure of the transport.
func (p *Proxy) answerTransportFailure(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	f, cause := classifyError(r.Context(), x, err)
	p.answerFailure(w, x, f, cause)
}

func (p *Proxy) answerFailure(w http.ResponseWriter, x *exchange, f *failure, cause error) {
	x.failure, x.cause = f, cause
	x.absolveInstance()
	if x.grpc {
		f.writeGRPC(w)
	} else {
		f.writeJSON(w)
	}
}

// classifyError returns the failure for an error of the transport. The failure says whose fault it is.
func classifyError(ctx context.Context, x *exchange, err error) (*failure, error) {
	var (
		own     *failure
		refused *upstream.Refused
		large   *http.MaxBytesError
		netErr  net.Error
	)
	in := x.in.whyCut()
	switch {
	case errors.As(err, &large), errors.As(in, &large):
		return failBody, nil
	case in != nil && errors.As(in, &netErr) && netErr.Timeout():
		return failSlowBody, nil
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return failGone, nil
	case in != nil:
		return failBadBody, in
	case errors.As(err, &refused):
		switch {
		case refused.Reason == upstream.Removed:
			return failNoRoute, nil
		case refused.Full && (refused.Reason == upstream.AtLimit || x.policy.QueueSize > 0):
			return failBusy, nil
		case refused.Reason == upstream.AtLimit:
			return failWaited, nil
		}
		return failNoInstance, nil
	case errors.As(err, &own):
		return own, err
	case errors.As(context.Cause(ctx), &own):
		return own, err
	default:
		return failBroken, err
	}
}
