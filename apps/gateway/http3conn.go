package gateway

import (
	_ "unsafe" // for go:linkname

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// newServerConn is http3.Server.NewRawServerConn, but it also returns the control stream, on which the GOAWAY frame
// is sent. The exported method does not return it. The program does not link if http3 has no such method, and
// TestHTTP3_SaysWhichRequestsItLeaves fails if the method returns something else.
//
//go:linkname newServerConn github.com/quic-go/quic-go/http3.(*Server).newRawServerConn
func newServerConn(s *http3.Server, conn *quic.Conn) (*http3.RawServerConn, *quic.SendStream, error)
