-- Shows Orderbed's messages and trace records in Wireshark and tshark:
--
--     tshark -X lua_script:orderbed.lua -r capture.pcapng
--     cp orderbed.lua ~/.local/lib/wireshark/plugins/
--
-- Field names: orderbed.kind, orderbed.sender, orderbed.seq, ...; orderbed_trace.event, orderbed_trace.number, ...
-- Messages inside messages repeat the fields. What a node would refuse is marked malformed, with the reason.

-- tables begin: made from node/wire.py and node/trace.py by `python -m collector.dissect`; do not edit
local MAGIC = 28514
local VERSION = 1
local PROTOCOL_PORT = 7700
local TRACE_MAGIC = 28532
local TRACE_VERSION = 2
local TRACE_PORT = 7701
local MAX_RECORDS = 30
local APPLICATION = 0
local ENVELOPE = {
  { name = "magic", size = 2, label = "Magic" },
  { name = "version", size = 1, label = "Version" },
  { name = "reserved", size = 1, label = "Reserved" },
  { name = "group", size = 4, label = "Group" },
  { name = "sender", size = 2, label = "Transmitting member" },
  { name = "sender_incarnation", size = 2, label = "Incarnation of the transmitting member" },
  { name = "transmission", size = 4, label = "Transmission number" },
}
local MESSAGE = {
  { name = "kind", size = 1, label = "Kind" },
  { name = "flags", size = 1, label = "Flags" },
  { name = "inner", size = 1, label = "Kind of the message inside the payload" },
  { name = "spare", size = 1, label = "Spare" },
  { name = "origin", size = 2, label = "Originating member" },
  { name = "incarnation", size = 2, label = "Incarnation of the originating member" },
  { name = "words", size = 2, label = "Number of words" },
  { name = "length", size = 2, label = "Payload length" },
  { name = "seq", size = 8, label = "Sequence number" },
}
local STAMP = {
  { name = "origin", size = 2, label = "Originating member" },
  { name = "incarnation", size = 2, label = "Incarnation of the originating member" },
  { name = "number", size = 4, label = "Message number" },
}
local TRACE_HEADER = {
  { name = "magic", size = 2, label = "Magic" },
  { name = "version", size = 1, label = "Version" },
  { name = "count", size = 1, label = "Number of records" },
  { name = "group", size = 4, label = "Group" },
  { name = "node", size = 2, label = "Member" },
  { name = "node_incarnation", size = 2, label = "Incarnation" },
  { name = "first", size = 4, label = "Number of the first record" },
}
local RECORD = {
  { name = "event", size = 1, label = "Event" },
  { name = "detail", size = 1, label = "Detail" },
  { name = "origin", size = 2, label = "Originating member" },
  { name = "incarnation", size = 2, label = "Incarnation of the originating member" },
  { name = "extra", size = 2, label = "Extra" },
  { name = "number", size = 8, label = "Message number" },
  { name = "at_ns", size = 8, label = "Monotonic time (ns)" },
  { name = "clock_ns", size = 8, label = "Node clock (ns)" },
  { name = "value", size = 8, label = "Value" },
  { name = "size_bytes", size = 4, label = "Payload bytes" },
  { name = "checksum", size = 4, label = "Payload check sum" },
}
local KINDS = { [0] = "APPLICATION", [1] = "TRIAL_1", [2] = "TRIAL_2", [3] = "TRIAL_3", [4] = "TRIAL_4", [7] = "GROUP_STATUS", [8] = "GROUP_PREPARE", [9] = "GROUP_PROMISE", [10] = "GROUP_ACCEPT", [11] = "GROUP_ACCEPTED", [12] = "GROUP_DECIDED", [13] = "GROUP_JOIN", [14] = "GROUP_STATE_REQUEST", [15] = "GROUP_STATE", [16] = "RELIABLE_DATA", [17] = "RELIABLE_NACK", [18] = "RELIABLE_HEARTBEAT", [19] = "RELIABLE_UNICAST", [20] = "RELIABLE_ACKNOWLEDGEMENT", [32] = "SEQUENCER_REQUEST", [33] = "SEQUENCER_NUMBER", [34] = "SEQUENCER_DATA", [48] = "CO_DATA", [49] = "CO_RET", [50] = "CO_STATE", [64] = "CBCAST_DATA", [80] = "LAMPORT_DATA", [81] = "LAMPORT_NULL", [96] = "MUTEX_REQUEST", [97] = "MUTEX_ACKNOWLEDGE", [98] = "MUTEX_RELEASE", [99] = "MUTEX_REPLY", [100] = "MUTEX_FAILED", [101] = "MUTEX_INQUIRE", [102] = "MUTEX_RELINQUISH", [103] = "MUTEX_OUTSIDE", [112] = "CLOCKS_TIME", [128] = "ALLACK_DATA", [129] = "ALLACK_NULL", [144] = "ATOP_DATA", [145] = "ATOP_DUMMY", [146] = "ATOP_DISTRIBUTION", [160] = "MBS_BROKERED", [161] = "MBS_FILL", [162] = "MBS_OFFER", [163] = "MBS_WISH", [164] = "MBS_GRANT", [176] = "ABCAST_DATA", [177] = "ABCAST_PROPOSAL", [178] = "ABCAST_FINAL", [192] = "TIMEWARP_DATA", [193] = "TIMEWARP_FOLLOW_UP", [194] = "TIMEWARP_ANTI", [195] = "TIMEWARP_REPORT", [208] = "ADAPTIVE_CARRIED", [209] = "ADAPTIVE_LAST", [210] = "ADAPTIVE_REQUEST", [211] = "ADAPTIVE_CALL", [212] = "ADAPTIVE_BALLOT", [213] = "ADAPTIVE_DECISION", [214] = "ADAPTIVE_CANDIDACY", [215] = "ADAPTIVE_PROBE", [216] = "ADAPTIVE_ECHO", [224] = "AMOEBA_REQUEST", [225] = "AMOEBA_DATA", [226] = "AMOEBA_BODY", [227] = "AMOEBA_ACCEPT", [228] = "AMOEBA_STORED", [240] = "OBJECTS_CALL", [241] = "OBJECTS_ENTRY", [242] = "OBJECTS_VOTE", [243] = "OBJECTS_ASK", [244] = "OBJECTS_PROPOSAL", [245] = "OBJECTS_OUTCOME", [246] = "OBJECTS_SETTLED", [247] = "OBJECTS_DIRECT", [248] = "OBJECTS_RECEIVED", [250] = "OBJECTS_NEWS" }
local LOCAL_KINDS = { [0] = true }
local FLAGS = { { bit = 1, name = "DUMMY" }, { bit = 2, name = "RETRANSMISSION" }, { bit = 4, name = "CONTROL" } }
local EVENTS = { [1] = "START", [2] = "SUBMIT", [3] = "SEND", [4] = "DELIVER", [5] = "UNDO", [6] = "DROP", [7] = "DRAIN", [8] = "STOP", [9] = "REFUSED", [10] = "REPORT", [11] = "BEHIND", [12] = "RECEIVE", [13] = "ENDED", [14] = "CLOCK", [15] = "VIEW", [16] = "MINORITY", [17] = "STATE" }
local DETAILS = {
  [3] = { [0] = "APPLICATION", [1] = "TRIAL_1", [2] = "TRIAL_2", [3] = "TRIAL_3", [4] = "TRIAL_4", [7] = "GROUP_STATUS", [8] = "GROUP_PREPARE", [9] = "GROUP_PROMISE", [10] = "GROUP_ACCEPT", [11] = "GROUP_ACCEPTED", [12] = "GROUP_DECIDED", [13] = "GROUP_JOIN", [14] = "GROUP_STATE_REQUEST", [15] = "GROUP_STATE", [16] = "RELIABLE_DATA", [17] = "RELIABLE_NACK", [18] = "RELIABLE_HEARTBEAT", [19] = "RELIABLE_UNICAST", [20] = "RELIABLE_ACKNOWLEDGEMENT", [32] = "SEQUENCER_REQUEST", [33] = "SEQUENCER_NUMBER", [34] = "SEQUENCER_DATA", [48] = "CO_DATA", [49] = "CO_RET", [50] = "CO_STATE", [64] = "CBCAST_DATA", [80] = "LAMPORT_DATA", [81] = "LAMPORT_NULL", [96] = "MUTEX_REQUEST", [97] = "MUTEX_ACKNOWLEDGE", [98] = "MUTEX_RELEASE", [99] = "MUTEX_REPLY", [100] = "MUTEX_FAILED", [101] = "MUTEX_INQUIRE", [102] = "MUTEX_RELINQUISH", [103] = "MUTEX_OUTSIDE", [112] = "CLOCKS_TIME", [128] = "ALLACK_DATA", [129] = "ALLACK_NULL", [144] = "ATOP_DATA", [145] = "ATOP_DUMMY", [146] = "ATOP_DISTRIBUTION", [160] = "MBS_BROKERED", [161] = "MBS_FILL", [162] = "MBS_OFFER", [163] = "MBS_WISH", [164] = "MBS_GRANT", [176] = "ABCAST_DATA", [177] = "ABCAST_PROPOSAL", [178] = "ABCAST_FINAL", [192] = "TIMEWARP_DATA", [193] = "TIMEWARP_FOLLOW_UP", [194] = "TIMEWARP_ANTI", [195] = "TIMEWARP_REPORT", [208] = "ADAPTIVE_CARRIED", [209] = "ADAPTIVE_LAST", [210] = "ADAPTIVE_REQUEST", [211] = "ADAPTIVE_CALL", [212] = "ADAPTIVE_BALLOT", [213] = "ADAPTIVE_DECISION", [214] = "ADAPTIVE_CANDIDACY", [215] = "ADAPTIVE_PROBE", [216] = "ADAPTIVE_ECHO", [224] = "AMOEBA_REQUEST", [225] = "AMOEBA_DATA", [226] = "AMOEBA_BODY", [227] = "AMOEBA_ACCEPT", [228] = "AMOEBA_STORED", [240] = "OBJECTS_CALL", [241] = "OBJECTS_ENTRY", [242] = "OBJECTS_VOTE", [243] = "OBJECTS_ASK", [244] = "OBJECTS_PROPOSAL", [245] = "OBJECTS_OUTCOME", [246] = "OBJECTS_SETTLED", [247] = "OBJECTS_DIRECT", [248] = "OBJECTS_RECEIVED", [250] = "OBJECTS_NEWS" },
  [4] = { [0] = "OPTIMISTIC", [1] = "AGREED", [2] = "FINAL" },
  [5] = { [0] = "OPTIMISTIC", [1] = "AGREED", [2] = "FINAL" },
  [6] = { [1] = "TRUNCATED", [2] = "BAD_MAGIC", [3] = "BAD_VERSION", [4] = "BAD_LENGTH", [5] = "UNKNOWN_KIND", [6] = "OTHER_GROUP", [7] = "UNKNOWN_MEMBER", [8] = "OWN", [9] = "STALE_INCARNATION", [10] = "DUPLICATE", [11] = "OUT_OF_WINDOW", [12] = "MALFORMED", [13] = "UNEXPECTED" },
  [13] = { [0] = "EXCLUDED", [1] = "LEFT" },
  [15] = { [1] = "FIRST", [2] = "SUSPICION", [3] = "JOIN", [4] = "LEAVE", [5] = "REPLACED", [6] = "BAD_PAIR", [7] = "MERGE", [8] = "RESTORED" },
}
-- tables end

local MAX_DEPTH = 16
local SHOWN_RECORDS = 10
local CUT = "the snap length of the capture cut it off"

local SIZES = { [1] = "uint8", [2] = "uint16", [4] = "uint32", [8] = "uint64" }

local message_proto = Proto("orderbed", "Orderbed")
local trace_proto = Proto("orderbed_trace", "Orderbed trace")

-- One ProtoField for each field of a table; `shapes` gives base and names where decimal numbers are not what people want.
local function make_fields(prefix, table_of_fields, shapes, into)
  for _, field in ipairs(table_of_fields) do
    local shape = shapes[field.name] or {}
    into[field.name] = ProtoField[SIZES[field.size]](prefix .. "." .. field.name, field.label, shape.base or base.DEC, shape.names)
  end
end

local HEX = { base = base.HEX }
local message_fields, trace_fields = {}, {}
make_fields("orderbed", ENVELOPE, { magic = HEX, group = HEX }, message_fields)
make_fields("orderbed", MESSAGE, {
  kind = { base = base.HEX, names = KINDS },
  inner = { base = base.HEX, names = KINDS },
  flags = HEX,
}, message_fields)
make_fields("orderbed_trace", TRACE_HEADER, { magic = HEX, group = HEX }, trace_fields)
make_fields("orderbed_trace", RECORD, { event = { names = EVENTS } }, trace_fields)
for _, flag in ipairs(FLAGS) do
  message_fields[flag.name] = ProtoField.bool("orderbed.flags." .. flag.name:lower(), flag.name, 8, nil, flag.bit)
end
local stamp_fields = {}
make_fields("orderbed.application", STAMP, {}, stamp_fields)
message_fields.word = ProtoField.uint64("orderbed.word", "Word")
message_fields.payload = ProtoField.bytes("orderbed.payload", "Application bytes")
trace_fields.record = ProtoField.uint64("orderbed_trace.record", "Number of the record")

local function listed(fields)
  local list = {}
  for _, field in pairs(fields) do
    list[#list + 1] = field
  end
  return list
end

message_proto.fields = listed(message_fields)
message_proto.fields = listed(stamp_fields)
trace_proto.fields = listed(trace_fields)

local message_malformed =
  ProtoExpert.new("orderbed.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
local trace_malformed =
  ProtoExpert.new("orderbed_trace.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
message_proto.experts = { message_malformed }
trace_proto.experts = { trace_malformed }

local function size_of(table_of_fields)
  local size = 0
  for _, field in ipairs(table_of_fields) do
    size = size + field.size
  end
  return size
end

local ENVELOPE_SIZE, MESSAGE_SIZE = size_of(ENVELOPE), size_of(MESSAGE)
local STAMP_SIZE = size_of(STAMP)
local TRACE_HEADER_SIZE, RECORD_SIZE = size_of(TRACE_HEADER), size_of(RECORD)

-- Adds each field of a table at `offset` and gives the values by name (64-bit ones as UInt64).
local function add_fields(buffer, offset, tree, table_of_fields, fields)
  local values, items = {}, {}
  for _, field in ipairs(table_of_fields) do
    local range = buffer(offset, field.size)
    items[field.name] = tree:add(fields[field.name], range)
    values[field.name] = field.size == 8 and range:uint64() or range:uint()
    offset = offset + field.size
  end
  return values, items
end

local function has_flag(flags, bit)
  return math.floor(flags / bit) % 2 == 1
end

local function flag_names(flags)
  local names = {}
  for _, flag in ipairs(FLAGS) do
    if has_flag(flags, flag.bit) then
      names[#names + 1] = flag.name
    end
  end
  return names
end

local function unknown_flags(flags)
  for _, flag in ipairs(FLAGS) do
    if has_flag(flags, flag.bit) then
      flags = flags - flag.bit
    end
  end
  return flags
end

local function carries_application(flags)
  for _, name in ipairs(flag_names(flags)) do
    if name == "DUMMY" or name == "CONTROL" then
      return false
    end
  end
  return true
end

-- Why a node would refuse this message, or nil. `room`: bytes from its begin to the end of what it must fill.
local function message_fault(message, room)
  local size = MESSAGE_SIZE + 8 * message.words + message.length
  if size ~= room then
    return string.format("%d bytes where %d are announced", room, size)
  elseif not KINDS[message.kind] or LOCAL_KINDS[message.kind] then
    return string.format("kind 0x%02x is not for the wire", message.kind)
  elseif not KINDS[message.inner] or (LOCAL_KINDS[message.inner] and message.inner ~= APPLICATION) then
    return string.format("inner kind 0x%02x is not for the wire", message.inner)
  elseif message.spare ~= 0 or unknown_flags(message.flags) ~= 0 then
    return "spare byte or unknown flags set"
  end
  return nil
end

local function envelope_fault(envelope)
  if envelope.magic ~= MAGIC then
    return string.format("magic 0x%04x", envelope.magic)
  elseif envelope.version ~= VERSION then
    return string.format("version %d", envelope.version)
  elseif envelope.reserved ~= 0 then
    return "the reserved byte is set"
  end
  return nil
end

local function describe(messages, envelope)
  local first = messages[1]
  local text = string.format("%s #%s from %d", KINDS[first.kind], tostring(first.seq), first.origin)
  if envelope.sender ~= first.origin then
    text = text .. string.format(" by %d", envelope.sender)
  end
  local inner = {}
  for level = 2, #messages do
    inner[#inner + 1] = KINDS[messages[level].kind]
  end
  if #inner > 0 then
    text = text .. " (" .. table.concat(inner, ", ") .. ")"
  end
  local names = flag_names(first.flags)
  if #names > 0 then
    text = text .. " [" .. table.concat(names, ", ") .. "]"
  end
  return text
end

-- One message that fills the buffer from `offset` to its end; the values, the tree, and why it would be refused.
local function add_message(buffer, offset, parent)
  local room = buffer:reported_len() - offset
  if room < MESSAGE_SIZE then
    return nil, parent, string.format("%d bytes are less than a message of %d", room, MESSAGE_SIZE)
  elseif buffer:captured_len() - offset < MESSAGE_SIZE then
    return nil, parent, CUT
  end
  local tree = parent:add(message_proto, buffer(offset), "Message")
  local message, items = add_fields(buffer, offset, tree, MESSAGE, message_fields)
  for _, flag in ipairs(FLAGS) do
    items.flags:add(message_fields[flag.name], buffer(offset + 1, 1))
  end
  tree:set_text(string.format("Message: %s #%s", KINDS[message.kind] or "unknown kind", tostring(message.seq)))
  local fault = message_fault(message, room)
  if fault then
    return nil, tree, fault
  end
  message.payload_at = offset + MESSAGE_SIZE + 8 * message.words
  for at = offset + MESSAGE_SIZE, math.min(message.payload_at, buffer:captured_len()) - 8, 8 do
    tree:add(message_fields.word, buffer(at, 8))
  end
  return message, tree, nil
end

local function add_payload(buffer, tree, message, has_stamp)
  local length = math.min(message.length, buffer:captured_len() - message.payload_at)
  if length <= 0 then
    return
  end
  local item = tree:add(message_fields.payload, buffer(message.payload_at, length))
  if has_stamp and length >= STAMP_SIZE then
    add_fields(buffer, message.payload_at, item, STAMP, stamp_fields)
  end
end

local function dissect_messages(buffer, tree, envelope)
  local messages, offset = {}, ENVELOPE_SIZE
  while true do
    local message, subtree, fault = add_message(buffer, offset, tree)
    if fault then
      subtree:add_proto_expert_info(message_malformed, fault)
      -- What lies inside a message that stands is not the node's business: it hands the bytes up.
      return #messages > 0 and describe(messages, envelope) or "Malformed: " .. fault
    end
    messages[#messages + 1] = message
    if message.inner == APPLICATION then
      add_payload(buffer, subtree, message, carries_application(messages[1].flags))
      return describe(messages, envelope)
    end
    if #messages == MAX_DEPTH then
      subtree:add_proto_expert_info(message_malformed, "messages are nested too deeply to be shown")
      return describe(messages, envelope)
    end
    tree, offset = subtree, message.payload_at
  end
end

local function dissect_datagram(buffer, packet, root)
  packet.cols.protocol = "Orderbed"
  local tree = root:add(message_proto, buffer())
  if buffer:captured_len() < ENVELOPE_SIZE then
    local reason = buffer:reported_len() < ENVELOPE_SIZE and "less than an envelope" or CUT
    tree:add_proto_expert_info(message_malformed, reason)
    packet.cols.info = "Malformed: " .. reason
    return buffer:len()
  end
  local envelope = add_fields(buffer, 0, tree, ENVELOPE, message_fields)
  local fault = envelope_fault(envelope)
  if fault then
    tree:add_proto_expert_info(message_malformed, fault)
    packet.cols.info = "Malformed: " .. fault
  else
    packet.cols.info = dissect_messages(buffer, tree, envelope)
  end
  return buffer:len()
end

local function trace_fault(header, size)
  local announced = TRACE_HEADER_SIZE + header.count * RECORD_SIZE
  if header.magic ~= TRACE_MAGIC then
    return string.format("magic 0x%04x", header.magic)
  elseif header.version ~= TRACE_VERSION then
    return string.format("version %d", header.version)
  elseif size ~= announced then
    return string.format("%d bytes where %d are announced", size, announced)
  elseif header.count < 1 or header.count > MAX_RECORDS then
    return string.format("%d records, 1 to %d are allowed", header.count, MAX_RECORDS)
  end
  return nil
end

local function detail_name(record)
  local names = DETAILS[record.event]
  return names and names[record.detail] or nil
end

local function add_record(buffer, offset, parent, number)
  local tree = parent:add(trace_proto, buffer(offset, RECORD_SIZE), "Record")
  tree:add(trace_fields.record, buffer(offset, RECORD_SIZE), UInt64.new(number % 2 ^ 32, math.floor(number / 2 ^ 32))):set_generated()
  local record, items = add_fields(buffer, offset, tree, RECORD, trace_fields)
  local name, detail = EVENTS[record.event], detail_name(record)
  if detail then
    items.detail:append_text(" (" .. detail .. ")")
  end
  if not name then
    tree:add_proto_expert_info(trace_malformed, string.format("event %d does not exist", record.event))
    name = "unknown event"
  end
  local text = name .. (detail and " " .. detail or "")
  if record.number:tonumber() > 0 then
    text = text .. string.format(" #%s of %d", tostring(record.number), record.origin)
  end
  tree:set_text(string.format("Record %d: %s", number, text))
  return name
end

local function dissect_trace(buffer, packet, root)
  packet.cols.protocol = "Orderbed trace"
  local tree = root:add(trace_proto, buffer())
  if buffer:captured_len() < TRACE_HEADER_SIZE then
    local reason = buffer:reported_len() < TRACE_HEADER_SIZE and "less than a trace header" or CUT
    tree:add_proto_expert_info(trace_malformed, reason)
    packet.cols.info = "Malformed: " .. reason
    return buffer:len()
  end
  local header = add_fields(buffer, 0, tree, TRACE_HEADER, trace_fields)
  local fault = trace_fault(header, buffer:reported_len())
  if not fault and buffer:captured_len() < buffer:reported_len() then
    fault = CUT
  end
  if fault then
    tree:add_proto_expert_info(trace_malformed, fault)
    packet.cols.info = "Malformed: " .. fault
    return buffer:len()
  end
  local names = {}
  for place = 0, header.count - 1 do
    names[#names + 1] = add_record(buffer, TRACE_HEADER_SIZE + place * RECORD_SIZE, tree, header.first + place)
  end
  local last, shown = header.first + header.count - 1, table.concat(names, " ", 1, math.min(#names, SHOWN_RECORDS))
  local more = #names > SHOWN_RECORDS and " ..." or ""
  packet.cols.info = string.format("Trace of %d, #%.0f to #%.0f: %s%s", header.node, header.first, last, shown, more)
  return buffer:len()
end

-- The destination decides: a node may send its trace records from the port of its protocol.
local function dissect(buffer, packet, root)
  if packet.dst_port == TRACE_PORT then
    return dissect_trace(buffer, packet, root)
  elseif packet.dst_port == PROTOCOL_PORT then
    return dissect_datagram(buffer, packet, root)
  end
  return 0
end

message_proto.dissector = dissect
trace_proto.dissector = dissect

local ports = DissectorTable.get("udp.port")
ports:add(PROTOCOL_PORT, message_proto)
ports:add(TRACE_PORT, trace_proto)
