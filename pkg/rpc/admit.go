package rpc

import (
	"context"
	"net/http"
	"net/netip"

	"connectrpc.com/connect"

	"github.com/windlass-run/windlass/pkg/conns"
)

// Call describes a call for an Admitter, without the message.
type Call struct {
	Procedure string
	Header    http.Header
	// Client is the address from which the call comes. It is the zero Addr without a network.
	Client netip.Addr
	// InLoop reports whether the call is a stream of a connection that repeats refused streams without waiting.
	InLoop bool
}

// Admission is the result of an Admitter.
type Admission struct {
	// Caller identifies the caller, for the caller's share of the server's memory. An Admitter that refuses a known
	// caller returns Caller with the error.
	Caller string
	// With adds the caller's identity to the context of the handler. It may be nil.
	With func(context.Context) context.Context
}

// Admitter identifies the caller and decides whether the call is allowed. It runs before the body is read, so
// that refused calls cost no memory.
type Admitter func(ctx context.Context, call Call) (Admission, error)

// requestGate converts an Admitter to the function that Connect calls.
func (e *serverInterceptor) requestGate(admit Admitter) connect.RequestGateFunc {
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
		in := messageReaderOf(ctx)
		if in != nil {
			call.Client = in.client
		} else {
			call.Client = addressOf(peer.Addr)
		}
		admission, err := admit(bounded, call)
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

// chargedConn is a stream whose messages are charged to a Budget. It gives the charge of a message back as soon as
// the message is decoded, because the stream may last for hours.
type chargedConn struct {
	connect.StreamingHandlerConn
	in *messageReader
}

func (c chargedConn) Receive(message any) error {
	defer c.in.releaseCharge()
	return c.StreamingHandlerConn.Receive(message)
}

// addressOf parses host:port. It returns the zero Addr if the host is not an IP address.
func addressOf(hostPort string) netip.Addr {
	at, err := netip.ParseAddrPort(hostPort)
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}
