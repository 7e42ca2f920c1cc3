package partitions

// Kinds of entities that use is counted for.
const (
	OfAssociation uint8 = iota + 1 // ID: association
	OfQOS                          // ID: QOS
	OfQOSUser                      // ID: QOS, Sub: uid
	OfQOSAccount                   // ID: QOS, Sub: the account's association
)

// Entity is one thing that use is counted for.
type Entity struct {
	Kind    uint8
	ID, Sub uint32
}
