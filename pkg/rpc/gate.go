package rpc

import (
	"context"
	"net/http"
	"net/netip"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/conns"
)

// Call is a call as a Gate sees it, without the message.
type Call struct {
	Procedure string
	Header    http.Header
	// Client is the address from which the call comes. It is the zero Addr without a network.
	Client netip.Addr
	// InLoop is whether it is a stream of a connection that keeps opening streams although they are refused.
	InLoop bool
}

// Admission is the result of a Gate.
type Admission struct {
	// Caller is the same text for all calls of one caller, for the caller's share of the server's memory. A
	// Gate that refuses a known caller returns it with the error.
	Caller string
	// With adds the caller's identity to the context of the handler. It may be nil.
	With func(context.Context) context.Context
}

// Gate identifies the caller and decides whether the call is allowed. It runs before the body is read, so
// that refused calls cost no memory.
type Gate func(ctx context.Context, call Call) (Admission, error)

// connectGate returns Connect's form of a Gate.
func (e *edge) connectGate(gate Gate) connect.RequestGateFunc {
	return func(ctx context.Context, spec connect.Spec, peer connect.Peer, header http.Header) (out context.Context, err error) {
		isStream := spec.StreamType != connect.StreamTypeUnary
		inLoop := e.holdBack && isStream && conns.EntryOf(ctx).Wait(ctx)
		bounded, cancel := context.WithTimeout(ctx, e.timeout)
		defer cancel()
		defer func() {
			if err = e.translateError(bounded, spec.Procedure, err, recover()); err != nil {
				e.metrics.countRefused(spec.Procedure, err)
				if isStream {
					e.noteRefusal(ctx, err)
				}
			}
		}()
		call := Call{Procedure: spec.Procedure, Header: header, InLoop: inLoop}
		in := inflowOf(ctx)
		if in != nil {
			call.Client = in.client
		} else {
			call.Client = addressOf(peer.Addr)
		}
		admission, err := gate(bounded, call)
		if err != nil {
			if in != nil {
				in.caller = admission.Caller
			}
			return nil, err
		}
		if err := in.admitCaller(admission.Caller); err != nil {
			return nil, err
		}
		if admission.With != nil {
			ctx = admission.With(ctx)
		}
		return ctx, nil
	}
}

// decoding returns the charge of a stream's message once it is decoded, because the stream may last for
// hours.
type decoding struct {
	connect.StreamingHandlerConn
	in *inflow
}

func (d decoding) Receive(message any) error {
	defer d.in.releaseCharge()
	return d.StreamingHandlerConn.Receive(message)
}

// addressOf parses host:port. It returns the zero Addr if the host is not an IP address.
func addressOf(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
