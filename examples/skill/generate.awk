# Makes the demo's data set: a sentence of a harbour log -> one compact record.
#
#     awk -v set=train   -f generate.awk > train.jsonl         1500 rows
#     awk -v set=heldout -f generate.awk > heldout.jsonl         64 rows
#     awk -v set=train   -v pairs=1 -v rows=400 -f generate.awk > pairs.jsonl
#     awk -v set=heldout -v pairs=1 -f generate.awk > pairs-heldout.jsonl
#
# With pairs each row has the right record and one that is wrong in one place: the way, the ship, the berth, the time, the
# count, or its form. Options: -v seed=N (1..2147483646, default 7), -v rows=N. The same bytes come out of every awk: numbers are drawn by a
# generator of our own, not by rand(). The two splits share no ship and no cargo count, so that a right answer on
# heldout.jsonl was read from the sentence, not remembered.

# "minimal standard" generator (Park and Miller 1988); products stay below 2^46, exact in a double.
function draw(n) {
    state = (state * 16807) % 2147483647
    return int(state / 2147483647 * n)
}
function pick(list,    parts, n) {
    n = split(list, parts, ",")
    return parts[1 + draw(n)]
}

# Counts that leave 3 when divided by 7 belong to the held-out split, all others to the training split.
function cargo_count(    n) {
    do n = 12 + draw(970)
    while ((n % 7 == 3) != (set == "heldout"))
    return n
}

function in_order(template, parts) {
    gsub(/KIND/, parts["kind"], template)
    gsub(/SHIP/, parts["ship"], template)
    gsub(/VERB/, parts["verb"], template)
    gsub(/BERTH/, parts["berth"], template)
    gsub(/TIME/, parts["time"], template)
    gsub(/CARGO/, parts["cargo"], template)
    return template
}

function sentence(parts, way,    n) {
    n = draw(6)
    if (way == "IN") {
        parts["verb"] = pick("docked,arrived,moored,came in,tied up")
        if (n == 0) return in_order("The KIND SHIP VERB at berth BERTH at TIME with CARGO.", parts)
        if (n == 1) return in_order("At TIME the KIND SHIP VERB at berth BERTH carrying CARGO.", parts)
        if (n == 2) return in_order("Berth BERTH: the SHIP, a KIND, VERB at TIME with CARGO.", parts)
        if (n == 3) return in_order("With CARGO aboard, the KIND SHIP VERB at berth BERTH at TIME.", parts)
        if (n == 4) return in_order("TIME. SHIP (KIND) VERB at berth BERTH, bringing CARGO.", parts)
        return in_order("CARGO reached us on the KIND SHIP, which VERB at berth BERTH at TIME.", parts)
    }
    parts["verb"] = pick("left,sailed from,departed from,cast off from,put out from")
    if (n == 0) return in_order("The KIND SHIP VERB berth BERTH at TIME with CARGO.", parts)
    if (n == 1) return in_order("At TIME the KIND SHIP VERB berth BERTH carrying CARGO.", parts)
    if (n == 2) return in_order("Berth BERTH: the SHIP, a KIND, left at TIME with CARGO.", parts)
    if (n == 3) return in_order("Loaded with CARGO, the KIND SHIP VERB berth BERTH at TIME.", parts)
    if (n == 4) return in_order("TIME. SHIP (KIND) VERB berth BERTH, taking CARGO.", parts)
    return in_order("CARGO went out on the KIND SHIP, which VERB berth BERTH at TIME.", parts)
}

function record(way, ship, berth, hour, minute, count) {
    return sprintf("%s %s|B%d|%02d%02d|%d", way, ship, berth, hour, minute, count)
}

# Another number below n.
function other(number, n) {
    return (number + 1 + draw(n - 1)) % n
}

function wrong(way, ship, berth, hour, minute, count,    place, name) {
    place = draw(6)
    if (place == 0) return record(way == "IN" ? "OUT" : "IN", ship, berth, hour, minute, count)
    if (place == 1) {
        do name = pick(ships)
        while (name == ship)
        return record(way, name, berth, hour, minute, count)
    }
    if (place == 2) return record(way, ship, 1 + other(berth - 1, 24), hour, minute, count)
    if (place == 3) return record(way, ship, berth, other(hour, 24), other(minute, 60), count)
    if (place == 4) return record(way, ship, berth, hour, minute, 12 + other(count - 12, 970))
    return sprintf("The %s came %s at berth %d.", ship, way == "IN" ? "in" : "out", berth)
}

function message(role, content) {
    return sprintf("{\"role\": \"%s\", \"content\": \"%s\"}", role, content)
}

function row(    parts, way, berth, hour, minute, count, text, right) {
    way = pick("IN,OUT")
    berth = 1 + draw(24)
    hour = draw(24)
    minute = draw(60)
    count = cargo_count()
    parts["ship"] = pick(ships)
    parts["kind"] = pick("ferry,trawler,barge,tanker,schooner,freighter,steamer,cutter")
    parts["berth"] = berth
    parts["time"] = sprintf("%02d:%02d", hour, minute)
    parts["cargo"] = count " " pick("crates,barrels,sacks,pallets,boxes,drums,bales,casks")
    text = sentence(parts, way)
    right = record(way, parts["ship"], berth, hour, minute, count)
    text = message("system", "Harbour log") ", " message("user", text)
    if (pairs)
        return sprintf("{\"prompt\": [%s], \"chosen\": [%s], \"rejected\": [%s]}", text, message("assistant", right),
                       message("assistant", wrong(way, parts["ship"], berth, hour, minute, count)))
    return sprintf("{\"messages\": [%s, %s]}", text, message("assistant", right))
}

BEGIN {
    if (set != "train" && set != "heldout") {
        print "usage: awk -v set=train|heldout [-v pairs=1] [-v seed=N] [-v rows=N] -f generate.awk" > "/dev/stderr"
        exit 2
    }
    state = (seed == "" ? 7 : seed) + (set == "heldout" ? 1000003 : 0)
    rows = rows == "" ? (set == "heldout" ? 64 : 1500) : rows
    for (i = 0; i < 20; i++) draw(2)
    if (set == "train")
        ships = "Aurora,Kestrel,Marigold,Albatross,Bluebell,Pelican,Victory,Endeavour,Sirius,Orion,Neptune,Juno," \
                "Ceres,Minerva,Apollo,Castor,Hector,Ajax,Penelope,Calypso,Electra,Europa,Gloria,Hope,Patience," \
                "Harmony,Liberty,Fortune,Prosper,Triumph,Valiant,Resolute,Dauntless,Fearless,Swift,Heron,Osprey," \
                "Falcon,Raven,Swallow,Plover,Curlew,Puffin,Gannet,Cormorant,Petrel,Skylark,Nightingale,Robin," \
                "Starling,Daisy,Primrose,Violet,Lavender,Heather,Clover,Rosemary,Iris,Camellia,Magnolia,Emma," \
                "Clara,Martha,Alice,Louisa,Charlotte,Sophia,Matilda,Eleanor,Beatrice,Margaret,Katherine,Helena," \
                "Rebecca,Hannah,Susanna,Edinburgh,Bristol,Lisbon,Geneva,Vienna,Granada,Toledo,Verona,Ravenna," \
                "Corsica,Malta,Cyprus,Jersey,Galway,Comet,Meteor,Eclipse,Zephyr,Tempest,Thunder,Rainbow,Sunrise," \
                "Horizon,Pioneer,Explorer,Wanderer,Pilgrim,Ranger,Scout,Merchant,Monarch,Regent,Baron,Duchess," \
                "Princess,Emperor,Jupiter,Saturn,Mercury"
    else
        ships = "Atlas,Phoenix,Dolphin,Swan,Eagle,Tulip,Jasmine,Olivia,Julia,Victoria,Florence,Naples,Oxford," \
                "Cambridge,Discovery,Enterprise,Adventure,Courage,Venus,Hercules,Mermaid,Lantern,Pearl,Emerald," \
                "Sapphire,Diana,Athena,Isabella,Caroline,Barcelona,Dublin,Navigator"
    while (made < rows + 0) {
        line = row()
        if (line in met) continue
        met[line] = 1
        print line
        made++
    }
}
